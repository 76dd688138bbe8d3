/*
 * sluice_nf.h - write a Sluice network function (NF) in C.
 *
 * An NF is a process. The manager passes it packets in shared memory, without copies; the NF reads
 * or changes each packet in place and gives it a verdict: next, drop, to a port, to a service. Two
 * styles, as in Rust:
 *
 *   callback   sluice_run() owns the loop and calls your burst function with up to 32 packets.
 *   pull       sluice_attach(), then sluice_read() and sluice_write(); you own the loop.
 *
 * The manager sets SLUICE_SOCKET and SLUICE_NF for NFs that it starts; others set them, or take
 * --sluice-socket and --sluice-nf.
 *
 * Functions that can fail return a negative SLUICE_E_...; sluice_last_error() then returns what
 * went wrong and what to do. Nothing here exits, aborts or throws. An NF is one thread: all calls
 * with an NF, and all callbacks, are on that thread. Link with -lsluice_nf (shared), or with
 * libsluice_nf.a and -lpthread -ldl -lm. 64-bit machines only.
 */
#ifndef SLUICE_NF_H
#define SLUICE_NF_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#define SLUICE_ASSERT static_assert
#else
#define SLUICE_ASSERT _Static_assert
#endif

/* Version of this interface; sluice_abi() returns the library's. */
#define SLUICE_ABI 3u
uint32_t sluice_abi(void);

/* ---- errors ---------------------------------------------------------------------------------- */

enum {
    SLUICE_E_ARGUMENT = -1,  /* an argument is null, not UTF-8 or out of range */
    SLUICE_E_ATTACH = -2,    /* cannot attach to the manager */
    SLUICE_E_HANDLER = -3,   /* your make or burst function failed */
    SLUICE_E_PANIC = -4,     /* the library failed; a bug in it */
    SLUICE_E_GONE = -5,      /* the manager is gone */
    SLUICE_E_BROKEN = -6,    /* the manager's side of the shared memory is broken */
    SLUICE_E_NOT_THERE = -7, /* there is no such header or name, or no manager to ask */
    SLUICE_E_PACKET = -8,    /* the packet was not read, was written before, or left its frame */
    SLUICE_E_TIMEOUT = -9,   /* no packet came in time */
    SLUICE_E_STORAGE = -10,  /* no storage: sluice_last_error() has the reason */
    SLUICE_E_FULL = -11,     /* both buffers are full, and a callback cannot wait */
};

/* The meaning of an error code. Never null; never freed. */
const char *sluice_strerror(int code);
/* The message of this thread's last failure, until its next one. Never null. */
const char *sluice_last_error(void);

/* ---- packets --------------------------------------------------------------------------------- */

/* Verdicts. Every packet comes with SLUICE_NEXT. */
enum { SLUICE_NEXT = 0, SLUICE_DROP = 1, SLUICE_TO_PORT = 2, SLUICE_TO_SERVICE = 3 };

/* Bits of sluice_packet.flags. */
enum { SLUICE_TRACED = 1, SLUICE_FRAGMENT = 2, SLUICE_NON_IP = 4 };

/* Most packets in a burst. */
#define SLUICE_BURST 32

/*
 * A packet in its frame. Its bytes may be changed in place. Change data, len, headroom and tailroom
 * only by sluice_push, sluice_pull, sluice_append and sluice_trim: a packet that leaves its frame
 * is dropped and counted as an error of the NF.
 */
typedef struct sluice_packet {
    uint8_t *data;     /* first byte, of its Ethernet header */
    uint16_t len;      /* bytes, at least 1 */
    uint16_t headroom; /* bytes that sluice_push can add */
    uint16_t tailroom; /* bytes that sluice_append can add */
    uint16_t chain;    /* number of its chain */
    uint16_t ingress;  /* number of the port where it entered */
    uint16_t arg;      /* port or service of the verdict */
    uint8_t verdict;   /* SLUICE_NEXT, ... */
    uint8_t flags;     /* SLUICE_FRAGMENT, ... */
    uint16_t reserved;
    uint32_t frame; /* the library's */
    uint32_t reserved2;
} sluice_packet;

SLUICE_ASSERT(sizeof(void *) == 8, "64-bit machines only");
SLUICE_ASSERT(sizeof(sluice_packet) == 32, "the library has another sluice_packet");
SLUICE_ASSERT(offsetof(sluice_packet, ingress) == 16 && offsetof(sluice_packet, frame) == 24, "the library has another sluice_packet");

static inline void sluice_next(sluice_packet *packet) { packet->verdict = SLUICE_NEXT; }
static inline void sluice_drop(sluice_packet *packet) { packet->verdict = SLUICE_DROP; }
static inline void sluice_to_port(sluice_packet *packet, uint16_t port) {
    packet->verdict = SLUICE_TO_PORT;
    packet->arg = port;
}
/* The packet leaves its chain. */
static inline void sluice_to_service(sluice_packet *packet, uint16_t service) {
    packet->verdict = SLUICE_TO_SERVICE;
    packet->arg = service;
}
/* Whether it was an IP fragment when it came in, the first one included. */
static inline int sluice_is_fragment(const sluice_packet *packet) { return (packet->flags & SLUICE_FRAGMENT) != 0; }
/* Whether it was IPv4 or IPv6 when it came in. */
static inline int sluice_is_ip(const sluice_packet *packet) { return (packet->flags & SLUICE_NON_IP) == 0; }

/* Adds n bytes at the front; returns them, or null (nothing changed) without headroom. */
static inline uint8_t *sluice_push(sluice_packet *packet, uint16_t n) {
    if (n > packet->headroom) return NULL;
    packet->headroom = (uint16_t)(packet->headroom - n);
    packet->len = (uint16_t)(packet->len + n);
    return packet->data -= n;
}
/* Takes n bytes off the front; returns it, or null (nothing changed) if no byte would remain. */
static inline uint8_t *sluice_pull(sluice_packet *packet, uint16_t n) {
    if (n >= packet->len) return NULL;
    packet->headroom = (uint16_t)(packet->headroom + n);
    packet->len = (uint16_t)(packet->len - n);
    return packet->data += n;
}
/* Adds n bytes at the end; returns them, or null (nothing changed) if the frame is full. */
static inline uint8_t *sluice_append(sluice_packet *packet, uint16_t n) {
    uint8_t *end = packet->data + packet->len;
    if (n > packet->tailroom) return NULL;
    packet->tailroom = (uint16_t)(packet->tailroom - n);
    packet->len = (uint16_t)(packet->len + n);
    return end;
}
/* Takes n bytes off the end; returns the front, or null (nothing changed) if none would remain. */
static inline uint8_t *sluice_trim(sluice_packet *packet, uint16_t n) {
    if (n >= packet->len) return NULL;
    packet->tailroom = (uint16_t)(packet->tailroom + n);
    packet->len = (uint16_t)(packet->len - n);
    return packet->data;
}

/* ---- surroundings ---------------------------------------------------------------------------- */

/* Names and numbers of ports, services and chains. Lives as long as the NF. */
typedef struct sluice_context sluice_context;

/* Numbers by name; SLUICE_E_NOT_THERE if there was none when this NF, or its zygote, was started:
 * restart it to find new ones. A number that it knows gets no other meaning while it runs. */
int sluice_port(const sluice_context *context, const char *name);
int sluice_service(const sluice_context *context, const char *name);
int sluice_chain(const sluice_context *context, const char *name);
/* Names by number; "" if there is none. */
const char *sluice_name(const sluice_context *context);
const char *sluice_port_name(const sluice_context *context, uint16_t port);
const char *sluice_chain_name(const sluice_context *context, uint16_t chain);
/* Processor that the NF belongs on, or -1. */
int sluice_core(const sluice_context *context);
/* The NF's own arguments, or those of one part of a group: how many, and one of them ("" beyond). */
uint32_t sluice_arg_count(const sluice_context *context);
const char *sluice_arg(const sluice_context *context, uint32_t number);

/*
 * Asks for a priority beside other NFs: 1 is ordinary, 2 is twice the share of the core. The manager
 * gives the nearest one within the service's priority_min and priority_max, within about a tenth of
 * a second, and later where more than some hundred NFs may ask; without these keys, none. With
 * per = "flow" it is for the present flow. 0 goes back to the service's own. To ask is one store to
 * memory. Since SLUICE_ABI 3.
 * SLUICE_E_ARGUMENT: negative or not finite. SLUICE_E_NOT_THERE: a part of a group, or the context
 * of a zygote's make (an instance asks by that of `forked`).
 */
int sluice_ask_priority(const sluice_context *context, double priority);
/*
 * Says that the present flow is over, with per = "flow": the instance is free for another one after
 * the pool's linger_ms, as after a FIN of both sides, and forgets. A flow ends when the NFs of all
 * its services per = "flow" have said so, within about two seconds, and no sooner than a tenth of a
 * second after its begin (a second with isolation = "strict"). Further packets of it are another
 * flow. Since SLUICE_ABI 3. SLUICE_E_NOT_THERE as above.
 */
int sluice_end_flow(const sluice_context *context);

/* How to find the manager. Null members, or null for all: by the environment and arguments. */
typedef struct sluice_options {
    const char *socket;    /* the manager's socket */
    const char *name;      /* of this NF ("ids.0") or its service ("ids") */
    uint32_t keep_signals; /* 0: SIGTERM and SIGINT stop the NF cleanly; 1: they do not */
    uint32_t reserved;
} sluice_options;
SLUICE_ASSERT(sizeof(sluice_options) == 24, "the library has another sluice_options");

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t sluice_now_ns(void);

/* ---- callback style -------------------------------------------------------------------------- */

typedef struct sluice_handler {
    void *state; /* passed to each function below; initially the arg of sluice_run */
    /* Handles 1 to 32 packets. Returns 0; if negative, they are dropped and the NF ends. Needed. */
    int (*burst)(void *state, sluice_packet *packets, uint32_t count, uint64_t now_ns);
    /* Called every tick_ns, packets or not; under load within a millisecond. May be null. */
    void (*tick)(void *state, uint64_t now_ns);
    /* Forgets everything learnt from packets. Called on a clean stop, and between the flows of
     * an NF that serves one at a time. May be null. */
    void (*clean)(void *state);
    uint64_t tick_ns;
    /*
     * Called in an instance that was forked from its service's zygote, before its first packet:
     * `state` is a copy of what make left there, and `context` is this instance's own. Make here
     * what belongs to one process: a storage, threads, timers, memory locks, random state, and
     * files (all instances share those that make opened, with their offsets). pthread_atfork
     * handlers are not called. Anything but 0 ends the instance. May be null.
     */
    int (*forked)(void *state, const sluice_context *context);
} sluice_handler;
SLUICE_ASSERT(sizeof(sluice_handler) == 48, "the library has another sluice_handler");

/* Fills in the handler. Anything but 0 ends sluice_run with SLUICE_E_HANDLER. */
typedef int (*sluice_make)(const sluice_context *context, void *arg, sluice_handler *handler);

/*
 * Attaches, makes the handler and runs it until SIGTERM, SIGINT or the manager's request: then 0.
 * Negative after a failure. Every frame is back with the manager when it returns. In a zygote (of a
 * service with `zygote = true`, recognised by SLUICE_ZYGOTE) make is called once, and sluice_run
 * returns in each instance that is forked from it, and with 0 in the zygote itself when the manager
 * lets it go. Without options, a single argument --help or --version is answered on stdout and
 * sluice_run returns 0; programs with arguments of their own read them before.
 */
static inline int sluice_run(const sluice_options *options, sluice_make make, void *arg);

/* The same, with the size of your sluice_handler, which later versions extend at its end. */
int sluice_run_sized(const sluice_options *options, sluice_make make, void *arg, size_t handler_size);
static inline int sluice_run(const sluice_options *options, sluice_make make, void *arg) {
    return sluice_run_sized(options, make, arg, sizeof(sluice_handler));
}

/*
 * An NF that can also be a part of a group, several NFs in one process (a chain with run = "fused"):
 * SLUICE_NF(make) instead of a main. Its arguments are in its context. Link the same source twice:
 * as a program (sluice-nf-x), and as a shared object beside it (libsluice_nf_x.so, with -shared
 * -fPIC), both with libsluice_nf.a. A part has no storage. In the packet thread of the manager
 * (run = "inline") the handler is made in another thread than it is called in; never in two at once.
 */
#define SLUICE_NF(make)                                                                              \
    int sluice_nf_part(uint32_t version, const uint8_t *request, size_t length, void *part);         \
    int sluice_nf_part(uint32_t version, const uint8_t *request, size_t length, void *part) {        \
        return sluice_part(version, request, length, part, make, sizeof(sluice_handler));            \
    }                                                                                                \
    int main(int argc, char **argv) {                                                                \
        if (sluice_run(NULL, make, NULL) >= 0) return 0;                                             \
        fprintf(stderr, "%s: %s\n", argc > 0 ? argv[0] : "nf", sluice_last_error());                 \
        return 1;                                                                                    \
    }                                                                                                \
    SLUICE_ASSERT(sizeof(sluice_handler) == 48, "the library has another sluice_handler")

/* What SLUICE_NF calls. */
int sluice_part(uint32_t version, const uint8_t *request, size_t length, void *part, sluice_make make, size_t handler_size);

/* ---- pull style ------------------------------------------------------------------------------ */

typedef struct sluice_nf sluice_nf;

/* Attaches and writes the NF to *nf. */
int sluice_attach(const sluice_options *options, sluice_nf **nf);
/* Its surroundings, until sluice_detach. */
const sluice_context *sluice_context_of(const sluice_nf *nf);
/*
 * Waits for packets, up to timeout_ms (negative: for ever), and copies up to max (and SLUICE_BURST)
 * of them to packets. Returns how many; 0 when the NF is to stop; SLUICE_E_TIMEOUT (also, early,
 * after callbacks of the storage), SLUICE_E_GONE, SLUICE_E_BROKEN.
 */
int sluice_read(sluice_nf *nf, sluice_packet *packets, uint32_t max, int timeout_ms);
/*
 * Returns packets to the manager, in order, with their verdicts. SLUICE_E_PACKET at the first one
 * that was not read, was written already, or left its frame; those before it are written.
 */
int sluice_write(sluice_nf *nf, const sluice_packet *packets, uint32_t count);
/* Leaves. Packets that were read and not written go back as dropped. Null is allowed. */
void sluice_detach(sluice_nf *nf);

/* ---- storage --------------------------------------------------------------------------------- */

/*
 * Files for an NF that must not wait for a disk. Reads and writes are gathered in a buffer and go
 * to the kernel together (io_uring), while others go into a second buffer and packets go on; when
 * both are full, the next request waits, and the NF sleeps. Each request's callback is called once,
 * on the NF's thread: between bursts, within sluice_read(), or within a request that waits. On a
 * clean stop the library completes all requests before it calls `clean` (or sluice_read returns 0),
 * and after.
 *
 * Requests that touch the same bytes of a file, one of them a write, keep their order. Keep a
 * descriptor open until the callbacks of its requests have been called. Nothing here calls fsync.
 */
typedef struct sluice_storage sluice_storage;

typedef struct sluice_storage_options {
    uint64_t flush_ns;         /* longest wait of a request in a buffer; 0: until the burst ends */
    uint32_t batch_bytes;      /* of a buffer, 4096 to 64 Mi; a request takes at least 32 */
    uint32_t batch_operations; /* most reads and runs of adjacent writes of a buffer: 1 to 4096 */
} sluice_storage_options;
SLUICE_ASSERT(sizeof(sluice_storage_options) == 16 && offsetof(sluice_storage_options, batch_operations) == 12,
              "the library has another sluice_storage_options");

/*
 * The callback of a request: with error 0 the `len` bytes that were read (fewer at the end of the
 * file) or written, valid only during the call; else errno, data null, and the bytes written
 * before. It may make requests, but cannot wait: with both buffers full they return SLUICE_E_FULL.
 * It must not call sluice_read, sluice_write or sluice_detach.
 */
typedef void (*sluice_done)(void *context, int error, const uint8_t *data, uint32_t len);

/* Offset for the file's position, which moves on: for pipes, and files opened to append. */
#define SLUICE_APPEND UINT64_MAX

/*
 * Sets up the storage of an NF, which has one. Null options: 1 ms, 256 KiB, 256 operations.
 * SLUICE_E_STORAGE if the kernel has no io_uring or forbids it, or the options are out of range.
 */
int sluice_storage_open(const sluice_context *context, const sluice_storage_options *options, sluice_storage **storage);
/* Reads `len` bytes. done may be null. Refusals: SLUICE_E_ARGUMENT (wrong size), SLUICE_E_FULL. */
int sluice_read_data(sluice_storage *storage, int fd, uint64_t offset, uint32_t len, sluice_done done, void *context);
/* Writes a copy of `len` bytes. As sluice_read_data. */
int sluice_write_data(sluice_storage *storage, int fd, uint64_t offset, const void *data, uint32_t len, sluice_done done,
                      void *context);
/* Calls the callbacks of ended requests. The library does so once a burst. */
int sluice_storage_poll(sluice_storage *storage);
/* Completes all requests and calls their callbacks. The library does so at a clean stop. */
int sluice_storage_flush(sluice_storage *storage);
/* Waits for the kernel, calls no callback, frees the storage (null is allowed). After sluice_run,
 * before sluice_detach. */
void sluice_storage_close(sluice_storage *storage);

/* ---- headers --------------------------------------------------------------------------------- */

/* Where the headers of a packet are. Offsets are from the packet's first byte. */
typedef struct sluice_headers {
    uint32_t fragment_id;
    uint16_t l2_len;          /* bytes of the Ethernet header and VLAN tags */
    uint16_t ethertype;       /* behind the VLAN tags */
    uint16_t vlans[4];        /* VLAN ids, the outermost first */
    uint16_t ip_offset;       /* of the IP header, if ip_version is not 0 */
    uint16_t ip_header_len;   /* with IPv4 options or IPv6 extension headers */
    uint16_t ip_end;          /* where the IP packet ends; Ethernet padding may follow */
    uint16_t fragment_offset; /* in bytes; 0 for the first fragment */
    uint16_t l4_offset;       /* of the transport header; 0: none (as in later fragments) */
    uint16_t l4_header_len;   /* with TCP options */
    uint16_t src_port;        /* if has_ports */
    uint16_t dst_port;        /* if has_ports */
    uint16_t payload;         /* where the payload of the innermost header starts */
    uint16_t reserved;
    uint8_t vlan_count;
    uint8_t ip_version;  /* 4, 6, or 0: no valid IP header */
    uint8_t ip_protocol; /* of the payload of IP, behind extension headers */
    uint8_t l4_protocol; /* 6 TCP, 17 UDP, 1 ICMP, 58 ICMPv6, 132 SCTP, 136 UDP-Lite */
    uint8_t is_fragment;
    uint8_t more_fragments;
    uint8_t is_truncated; /* the packet is shorter than the IP header says */
    uint8_t has_ports;
} sluice_headers;
SLUICE_ASSERT(sizeof(sluice_headers) == 44, "the library has another sluice_headers");
SLUICE_ASSERT(offsetof(sluice_headers, payload) == 32 && offsetof(sluice_headers, has_ports) == 43,
              "the library has another sluice_headers");

/* Finds the headers of a packet. SLUICE_E_NOT_THERE if it is shorter than an Ethernet header. */
int sluice_parse(const uint8_t *data, uint32_t len, sluice_headers *headers);

/*
 * Setters. Each updates the checksums by difference (RFC 1624), IP and transport, and keeps
 * `headers` right. Addresses are 4 or 16 bytes as in the packet; ports are numbers in host order.
 * SLUICE_E_NOT_THERE if there is no such header.
 */
int sluice_set_src(uint8_t *data, uint32_t len, sluice_headers *headers, const uint8_t *address, uint32_t address_len);
int sluice_set_dst(uint8_t *data, uint32_t len, sluice_headers *headers, const uint8_t *address, uint32_t address_len);
int sluice_set_src_port(uint8_t *data, uint32_t len, sluice_headers *headers, uint16_t port);
int sluice_set_dst_port(uint8_t *data, uint32_t len, sluice_headers *headers, uint16_t port);
int sluice_set_ttl(uint8_t *data, uint32_t len, sluice_headers *headers, uint8_t ttl);
int sluice_set_dscp(uint8_t *data, uint32_t len, sluice_headers *headers, uint8_t dscp);
int sluice_set_ecn(uint8_t *data, uint32_t len, sluice_headers *headers, uint8_t ecn);
/* Ends the IP packet at `end`, after its length changed. Then call sluice_fix_checksums. */
int sluice_set_ip_len(uint8_t *data, uint32_t len, sluice_headers *headers, uint32_t end);
/* Computes the checksums of IPv4, TCP, UDP, ICMP and ICMPv6 anew. */
int sluice_fix_checksums(uint8_t *data, uint32_t len, sluice_headers *headers);
/* 1 if they are right, 0 if not. */
int sluice_are_checksums_right(const uint8_t *data, uint32_t len, const sluice_headers *headers);

/* The Internet checksum of bytes, as a number in host order. */
uint16_t sluice_checksum(const uint8_t *data, uint32_t len);
/* The checksum after a change of one word that it covers (RFC 1624), all in host order. */
uint16_t sluice_checksum_update(uint16_t checksum, uint16_t old_word, uint16_t new_word);

#ifdef __cplusplus
}
#endif
#endif
