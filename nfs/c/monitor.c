/*
 * Counts packets and bytes of every flow, in pull style, and passes the packets on.
 *
 *   monitor [SECONDS]
 *
 * Prints the flows, largest first, on SIGUSR1, every SECONDS if given, and at the end. A flow is
 * source and destination address, ports and protocol; fragments have no ports. The table holds
 * 65,536 flows; packets of further flows, and packets that are not IP, are counted together.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice_nf.h"

#define FLOWS 65536u /* a power of two */
#define SLOTS (2 * FLOWS)

typedef struct {
    uint8_t src[16], dst[16];
    uint16_t src_port, dst_port;
    uint8_t version, protocol, reserved[2];
} flow_key;

typedef struct {
    flow_key key; /* version 0: a free slot */
    uint64_t packets, bytes;
} flow;

static flow table[SLOTS], rest;
static uint32_t used;
static volatile sig_atomic_t asked;

static void on_usr1(int signal) {
    (void)signal;
    asked = 1;
}

/* FNV-1a. It resists no attacker, which can only make this monitor slow. */
static uint64_t hash(const flow_key *key) {
    const uint8_t *bytes = (const uint8_t *)key;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ bytes[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

static flow *find(const flow_key *key) {
    for (uint32_t at = (uint32_t)hash(key);; at++) {
        flow *slot = &table[at & (SLOTS - 1)];
        if (slot->key.version == 0) {
            if (used == FLOWS) return &rest;
            used++;
            slot->key = *key;
            return slot;
        }
        if (memcmp(&slot->key, key, sizeof *key) == 0) return slot;
    }
}

static void count(const sluice_packet *packet) {
    sluice_headers headers;
    flow_key key = {0};
    flow *counted = &rest;
    if (sluice_parse(packet->data, packet->len, &headers) == 0 && headers.ip_version != 0) {
        const uint8_t *ip = packet->data + headers.ip_offset;
        size_t len = headers.ip_version == 4 ? 4 : 16, at = headers.ip_version == 4 ? 12 : 8;
        memcpy(key.src, ip + at, len);
        memcpy(key.dst, ip + at + len, len);
        key.version = headers.ip_version;
        key.protocol = headers.ip_protocol;
        if (headers.has_ports && !headers.is_fragment) {
            key.src_port = headers.src_port;
            key.dst_port = headers.dst_port;
        }
        counted = find(&key);
    }
    counted->packets++;
    counted->bytes += packet->len;
}

static int by_bytes(const void *a, const void *b) {
    const flow *x = *(flow *const *)a, *y = *(flow *const *)b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static void print(void) {
    static flow *order[FLOWS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (table[i].key.version != 0) order[n++] = &table[i];
    qsort(order, n, sizeof *order, by_bytes);
    for (uint32_t i = 0; i < n; i++) {
        const flow_key *key = &order[i]->key;
        char src[INET6_ADDRSTRLEN] = "", dst[INET6_ADDRSTRLEN] = "";
        int family = key->version == 4 ? AF_INET : AF_INET6;
        inet_ntop(family, key->src, src, sizeof src);
        inet_ntop(family, key->dst, dst, sizeof dst);
        printf("%s %u %s %u %u: %llu packets, %llu bytes\n", src, key->src_port, dst, key->dst_port, key->protocol,
               (unsigned long long)order[i]->packets, (unsigned long long)order[i]->bytes);
    }
    printf("other: %llu packets, %llu bytes\n", (unsigned long long)rest.packets, (unsigned long long)rest.bytes);
    fflush(stdout);
}

int main(int argc, char **argv) {
    uint64_t every_ns = argc > 1 && argv[1][0] != '-' ? strtoull(argv[1], NULL, 10) * 1000000000u : 0, next_ns;
    sluice_packet packets[SLUICE_BURST];
    struct sigaction action = {.sa_handler = on_usr1};
    sluice_nf *nf;
    int n;

    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf("Usage: %s [SECONDS]\n\nCounts packets and bytes of every flow; prints them on SIGUSR1, every SECONDS, and at the end.\n",
               argv[0]);
        return 0;
    }
    sigaction(SIGUSR1, &action, NULL);
    if (sluice_attach(NULL, &nf) < 0) {
        fprintf(stderr, "monitor: %s\n", sluice_last_error());
        return 1;
    }
    next_ns = sluice_now_ns() + every_ns;
    while ((n = sluice_read(nf, packets, SLUICE_BURST, 100)) > 0 || n == SLUICE_E_TIMEOUT) {
        for (int i = 0; i < n; i++) count(&packets[i]);
        if (n > 0 && (n = sluice_write(nf, packets, (uint32_t)n)) < 0) break;
        if (asked || (every_ns != 0 && sluice_now_ns() >= next_ns)) {
            next_ns = sluice_now_ns() + every_ns;
            asked = 0;
            print();
        }
    }
    if (n < 0) fprintf(stderr, "monitor: %s\n", sluice_last_error());
    print();
    sluice_detach(nf);
    return n < 0;
}
