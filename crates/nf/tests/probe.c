/*
 * The NF that tests the C interface. Its first argument is the style: callback, first (the same,
 * built for SLUICE_ABI 1), zygote, pull, storage, headers (needs no manager) or errors.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sluice_nf.h"

/* Stops with a message if a condition does not hold. */
#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "probe.c:%d: %s (%s)\n", __LINE__, #condition, sluice_last_error());    \
            exit(2);                                                                                \
        }                                                                                           \
    } while (0)

static int wan, ids;
static const sluice_context *surroundings;

/* Acts on a packet's first byte. */
static int handle(sluice_packet *packet) {
    switch (packet->data[0]) {
    case 'd': sluice_drop(packet); break;
    case 'p': sluice_to_port(packet, (uint16_t)wan); break;
    case 's': sluice_to_service(packet, (uint16_t)ids); break;
    case '+':
        CHECK(sluice_push(packet, 129) == NULL);
        memcpy(sluice_push(packet, 4), "more", 4);
        break;
    case '-':
        CHECK(sluice_pull(packet, packet->len) == NULL);
        CHECK(sluice_pull(packet, 1) == packet->data);
        break;
    case 'e':
        CHECK(sluice_append(packet, (uint16_t)(packet->tailroom + 1)) == NULL);
        CHECK(sluice_trim(packet, packet->len) == NULL);
        memcpy(sluice_append(packet, 3), "end", 3);
        CHECK(sluice_trim(packet, 1) != NULL);
        break;
    case 'i':
        sluice_to_port(packet, (uint16_t)wan);
        CHECK(packet->ingress == 1 && packet->chain == 0);
        sluice_next(packet);
        break;
    case 'a':
        CHECK(sluice_ask_priority(surroundings, -1.0) == SLUICE_E_ARGUMENT);
        CHECK(sluice_ask_priority(surroundings, 2.5) == 0);
        break;
    case 'o': CHECK(sluice_end_flow(surroundings) == 0); break;
    case 'w': packet->headroom = 60000; break; /* out of its frame */
    case '!': return -42;
    default: packet->data[1]++;
    }
    return 0;
}

static void names(const sluice_context *context) {
    surroundings = context;
    CHECK(strcmp(sluice_name(context), "ids.0") == 0);
    CHECK((wan = sluice_port(context, "wan")) == 1);
    CHECK((ids = sluice_service(context, "ids")) == 2);
    CHECK(sluice_chain(context, "out") == 0);
    CHECK(sluice_port(context, "dmz") == SLUICE_E_NOT_THERE);
    CHECK(sluice_port(context, NULL) == SLUICE_E_ARGUMENT);
    CHECK(strcmp(sluice_port_name(context, 0), "lan") == 0);
    CHECK(strcmp(sluice_port_name(context, 9), "") == 0);
    CHECK(strcmp(sluice_chain_name(context, 0), "out") == 0);
    CHECK(sluice_core(context) == -1);
    printf("ready %s\n", sluice_name(context));
    fflush(stdout);
}

static int burst(void *state, sluice_packet *packets, uint32_t count, uint64_t now_ns) {
    CHECK(state == &wan && count > 0 && count <= SLUICE_BURST && now_ns > 0);
    for (uint32_t i = 0; i < count; i++) {
        int code = handle(&packets[i]);
        if (code < 0) return code;
    }
    return 0;
}

static void tick(void *state, uint64_t now_ns) {
    static int ticks;
    CHECK(state == &wan && now_ns > 0);
    if (++ticks <= 2) printf("tick %d\n", ticks), fflush(stdout);
}

static void clean(void *state) {
    CHECK(state == &wan);
    printf("clean\n");
}

static int make(const sluice_context *context, void *arg, sluice_handler *handler) {
    CHECK(handler->state == arg);
    if (getenv("BROKEN")) return -1;
    names(context);
    handler->burst = burst;
    handler->clean = clean;
    if (getenv("TICK")) handler->tick = tick, handler->tick_ns = 2000000;
    return 0;
}

/* With a zygote: this instance's number of packets that start with '#', and its surroundings. */
static int zygote_burst(void *state, sluice_packet *packets, uint32_t count, uint64_t now_ns) {
    (void)now_ns;
    for (uint32_t i = 0; i < count; i++) packets[i].data[1] = (uint8_t)++*(int *)state;
    return 0;
}

static int zygote_forked(void *state, const sluice_context *context) {
    CHECK(*(int *)state == 0 && sluice_port(context, "wan") == 1);
    CHECK(sluice_ask_priority(context, 4.0) == 0);
    printf("forked %s\n", sluice_name(context));
    fflush(stdout);
    return getenv("BROKEN") ? 7 : 0;
}

static int zygote_make(const sluice_context *context, void *arg, sluice_handler *handler) {
    CHECK(handler->state == arg && handler->forked == NULL);
    CHECK(strcmp(sluice_name(context), "ids.zygote") == 0 && sluice_core(context) == -1);
    CHECK(sluice_ask_priority(context, 4.0) == SLUICE_E_NOT_THERE && sluice_end_flow(context) == SLUICE_E_NOT_THERE);
    printf("made"); /* not flushed: the library does it, once */
    handler->burst = zygote_burst;
    handler->forked = zygote_forked;
    return 0;
}

/* A program built with the smaller sluice_handler of SLUICE_ABI 1. */
struct first_handler {
    void *state;
    int (*burst)(void *state, sluice_packet *packets, uint32_t count, uint64_t now_ns);
    void (*tick)(void *state, uint64_t now_ns);
    void (*clean)(void *state);
    uint64_t tick_ns;
};
extern int first_run(const sluice_options *options, int (*make)(const sluice_context *, void *, struct first_handler *),
                     void *arg) __asm__("sluice_run");

static int first_make(const sluice_context *context, void *arg, struct first_handler *handler) {
    struct first_handler mine = {arg, burst, NULL, clean, 0};
    names(context);
    *handler = mine;
    return 0;
}

/* Appends packets to the file FILE; reads it back for one that starts with r. */
static sluice_storage *storage;
static int file_fd, written, failed;

static void written_one(void *context, int error, const uint8_t *data, uint32_t len) {
    CHECK(context == &written);
    if (error) {
        CHECK(error == ENOSPC && data == NULL && len == 0);
        failed++;
    } else {
        CHECK(data[0] == 'w' && len >= 2);
        written++;
    }
}

static void read_back(void *context, int error, const uint8_t *data, uint32_t len) {
    CHECK(context == &file_fd && error == 0);
    printf("read %.*s\n", (int)len, (const char *)data);
    fflush(stdout);
}

static int storage_burst(void *state, sluice_packet *packets, uint32_t count, uint64_t now_ns) {
    (void)state, (void)now_ns;
    for (uint32_t i = 0; i < count; i++) {
        if (packets[i].data[0] == 'w')
            CHECK(sluice_write_data(storage, file_fd, SLUICE_APPEND, packets[i].data, packets[i].len, written_one, &written) == 0);
        if (packets[i].data[0] == 'r') CHECK(sluice_read_data(storage, file_fd, 2, 100, read_back, &file_fd) == 0);
    }
    return 0;
}

static void storage_clean(void *state) {
    (void)state;
    printf("clean: %d written, %d failed\n", written, failed);
    CHECK(sluice_write_data(storage, file_fd, 0, "W", 1, NULL, NULL) == 0);
}

static int storage_make(const sluice_context *context, void *arg, sluice_handler *handler) {
    sluice_storage_options options = {.flush_ns = 0, .batch_bytes = 4096, .batch_operations = 8};
    sluice_storage *second;
    (void)arg;
    CHECK((file_fd = open(getenv("FILE"), O_RDWR)) >= 0);
    options.batch_bytes = 1;
    CHECK(sluice_storage_open(context, &options, &storage) == SLUICE_E_STORAGE && storage == NULL);
    CHECK(strstr(sluice_last_error(), "batch_bytes") != NULL);
    options.batch_bytes = 4096;
    CHECK(sluice_storage_open(context, &options, &storage) == 0);
    CHECK(sluice_storage_open(context, NULL, &second) == SLUICE_E_STORAGE);
    CHECK(sluice_write_data(storage, -1, 0, "x", 1, NULL, NULL) == SLUICE_E_ARGUMENT);
    CHECK(sluice_write_data(storage, file_fd, 0, "", 0, NULL, NULL) == SLUICE_E_ARGUMENT);
    CHECK(sluice_read_data(storage, file_fd, 0, 5000, NULL, NULL) == SLUICE_E_ARGUMENT);
    CHECK(sluice_storage_poll(NULL) == SLUICE_E_ARGUMENT && sluice_storage_flush(storage) == 0);
    handler->burst = storage_burst;
    handler->clean = storage_clean;
    return 0;
}

static int storage_style(void) {
    int code = sluice_run(NULL, storage_make, NULL);
    if (code != 0) fprintf(stderr, "%d %s\n", code, sluice_last_error());
    sluice_storage_close(storage);
    return code != 0;
}

static int pull_style(void) {
    sluice_packet packets[SLUICE_BURST], twice;
    sluice_nf *nf;
    int n;
    CHECK(sluice_attach(NULL, &nf) == 0);
    names(sluice_context_of(nf));
    CHECK(sluice_read(nf, packets, 0, 0) == SLUICE_E_ARGUMENT);
    while ((n = sluice_read(nf, packets, SLUICE_BURST, 50)) != 0) {
        if (n == SLUICE_E_TIMEOUT) continue;
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            if (packets[i].data[0] == 'f') { /* read, never written: detach returns it */
                packets[i--] = packets[--n];
                continue;
            }
            CHECK(handle(&packets[i]) == 0);
        }
        twice = packets[0];
        CHECK(sluice_write(nf, packets, (uint32_t)n) == 0);
        if (n > 0) CHECK(sluice_write(nf, &twice, 1) == SLUICE_E_PACKET);
    }
    sluice_detach(nf);
    printf("clean\n");
    return 0;
}

static void headers(void) {
    /* Ethernet, IPv4 10.0.0.1 -> 10.0.0.2, UDP 5000 -> 53, "abc", then padding. */
    uint8_t packet[60] = {2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 0, 0x45, 0, 0, 31, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
                          0x13, 0x88, 0, 53, 0, 11, 0, 0, 'a', 'b', 'c'};
    const uint8_t address[16] = {192, 168, 1, 1};
    sluice_headers headers, again;
    CHECK(sluice_parse(packet, 13, &headers) == SLUICE_E_NOT_THERE);
    CHECK(sluice_parse(NULL, 60, &headers) == SLUICE_E_ARGUMENT);
    CHECK(sluice_parse(packet, sizeof packet, &headers) == 0);
    CHECK(headers.ip_version == 4 && headers.ip_offset == 14 && headers.ip_end == 45 && headers.l4_protocol == 17);
    CHECK(headers.has_ports && headers.src_port == 5000 && headers.dst_port == 53 && headers.payload == 42);
    CHECK(sluice_are_checksums_right(packet, sizeof packet, &headers) == 0);
    CHECK(sluice_fix_checksums(packet, sizeof packet, &headers) == 0);
    CHECK(sluice_are_checksums_right(packet, sizeof packet, &headers) == 1);
    CHECK(sluice_checksum(packet + 14, 20) == 0);
    CHECK(sluice_set_src(packet, sizeof packet, &headers, address, 4) == 0);
    CHECK(sluice_set_dst(packet, sizeof packet, &headers, address, 4) == 0);
    CHECK(sluice_set_dst(packet, sizeof packet, &headers, address, 16) == SLUICE_E_NOT_THERE);
    CHECK(sluice_set_dst(packet, sizeof packet, &headers, address, 5) == SLUICE_E_NOT_THERE);
    CHECK(sluice_set_src_port(packet, sizeof packet, &headers, 1) == 0);
    CHECK(sluice_set_dst_port(packet, sizeof packet, &headers, 2) == 0);
    CHECK(sluice_set_ttl(packet, sizeof packet, &headers, 7) == 0);
    CHECK(sluice_set_dscp(packet, sizeof packet, &headers, 46) == 0);
    CHECK(sluice_set_ecn(packet, sizeof packet, &headers, 1) == 0);
    CHECK(memcmp(packet + 26, "\xc0\xa8\x01\x01\xc0\xa8\x01\x01\x00\x01\x00\x02", 12) == 0);
    CHECK(packet[15] == (46 << 2 | 1) && packet[22] == 7);
    CHECK(sluice_are_checksums_right(packet, sizeof packet, &headers) == 1);
    CHECK(sluice_set_ip_len(packet, sizeof packet, &headers, 50) == 0);
    CHECK(sluice_fix_checksums(packet, sizeof packet, &headers) == 0);
    CHECK(sluice_are_checksums_right(packet, sizeof packet, &headers) == 1);
    CHECK(sluice_set_ip_len(packet, sizeof packet, &headers, 61) == SLUICE_E_NOT_THERE);
    CHECK(sluice_parse(packet, sizeof packet, &again) == 0 && memcmp(&again, &headers, sizeof again) == 0);
    CHECK(sluice_checksum_update(0xdd2f, 0x5555, 0x3285) == 0);
    memset(&headers, 0xff, sizeof headers); /* nonsense is refused; nothing behind the packet changes */
    headers.ip_version = 4;
    CHECK(sluice_fix_checksums(packet, sizeof packet, &headers) == SLUICE_E_NOT_THERE);
}

static void errors(void) {
    const sluice_options nowhere = {.socket = "/nowhere/nf.sock", .name = "ids"};
    sluice_nf *nf = (sluice_nf *)&nowhere;
    CHECK(sluice_abi() == SLUICE_ABI);
    CHECK(sluice_run(NULL, NULL, NULL) == SLUICE_E_ARGUMENT);
    CHECK(sluice_run_sized(NULL, make, NULL, sizeof(sluice_handler) + 8) == SLUICE_E_ARGUMENT);
    CHECK(sluice_run_sized(NULL, make, NULL, 8) == SLUICE_E_ARGUMENT);
    CHECK(sluice_run(&nowhere, make, NULL) == SLUICE_E_ATTACH);
    CHECK(strstr(sluice_last_error(), "/nowhere/nf.sock") != NULL);
    CHECK(sluice_attach(&nowhere, &nf) == SLUICE_E_ATTACH && nf == NULL);
    CHECK(sluice_attach(&nowhere, NULL) == SLUICE_E_ARGUMENT);
    CHECK(sluice_read(NULL, NULL, 1, 0) == SLUICE_E_ARGUMENT && sluice_write(NULL, NULL, 0) == SLUICE_E_ARGUMENT);
    CHECK(sluice_ask_priority(NULL, 1.0) == SLUICE_E_ARGUMENT && sluice_end_flow(NULL) == SLUICE_E_ARGUMENT);
    CHECK(sluice_context_of(NULL) == NULL && strcmp(sluice_name(NULL), "") == 0);
    CHECK(strcmp(sluice_strerror(SLUICE_E_GONE), "the manager is gone") == 0);
    sluice_detach(NULL);
}

int main(int argc, char **argv) {
    const char *style = argc > 1 ? argv[1] : "";
    if (strcmp(style, "pull") == 0) return pull_style();
    if (strcmp(style, "storage") == 0) return storage_style();
    if (strcmp(style, "headers") == 0) return headers(), 0;
    if (strcmp(style, "errors") == 0) return errors(), 0;
    static int count;
    int code;
    if (strcmp(style, "zygote") == 0)
        code = sluice_run(NULL, zygote_make, &count);
    else if (strcmp(style, "first") == 0)
        code = first_run(NULL, first_make, &wan);
    else
        code = sluice_run(NULL, make, &wan);
    if (code < 0) fprintf(stderr, "%d %s\n", code, sluice_last_error());
    return code < 0;
}
