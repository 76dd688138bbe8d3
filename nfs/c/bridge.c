/* Passes every packet on, unchanged: the smallest NF in C. */
#include <stdio.h>

#include "sluice_nf.h"

static int burst(void *state, sluice_packet *packets, uint32_t count, uint64_t now_ns) {
    (void)state, (void)packets, (void)count, (void)now_ns;
    return 0; /* every packet comes with the verdict SLUICE_NEXT */
}

static int make(const sluice_context *context, void *arg, sluice_handler *handler) {
    (void)context, (void)arg;
    handler->burst = burst;
    return 0;
}

int main(void) {
    if (sluice_run(NULL, make, NULL) < 0) {
        fprintf(stderr, "bridge: %s\n", sluice_last_error());
        return 1;
    }
    return 0;
}
