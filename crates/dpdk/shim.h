/* The C side of crates/dpdk: DPDK's inline functions, a burst at a time, without Sluice's logic.
 *
 * Terms: frame, a slot of the arena, by number; mbuf, DPDK's header of a buffer, in DPDK's own
 * memory, one per frame for good. Functions that can fail return 0 or more, or a negative errno.
 * src/ffi.rs declares the same; the sizes are asserted on both sides. */
#ifndef SLUICE_DPDK_SHIM_H
#define SLUICE_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define SLUICE_BURST 32    /* sluice_shm::BURST */
#define SLUICE_HEADROOM 128 /* sluice_shm::arena::HEADROOM */
#define SLUICE_CACHE 256   /* free mbufs that DPDK keeps for each registered thread */

struct sluice_packet {
	uint32_t frame;
	uint16_t offset;
	uint16_t len;
};

/* Packets that the shim dropped, by reason; one per queue. */
struct sluice_drops {
	uint64_t rx_too_long; /* did not fit in one frame */
	uint64_t rx_foreign;  /* in a buffer that is not of the pool */
	uint64_t tx_invalid;  /* outside its frame */
};

struct sluice_limits {
	uint16_t port;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint16_t can_rss; /* by IP, TCP and UDP */
	char driver[64];
};

struct sluice_setup {
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t descriptors; /* out: the device's number (receive) */
	uint16_t mtu;         /* 0: the device's default */
	uint16_t rss;         /* spread flows over the receive queues */
	uint16_t stage;       /* out: the failed step: 0 configure, 1 rx queue, 2 tx queue, 3 start */
};

struct sluice_stats {
	uint64_t rx_packets, tx_packets, rx_bytes, tx_bytes;
	uint64_t rx_missed, rx_errors, tx_errors, rx_no_frame;
};

struct sluice_pool;

/* EAL. Log lines of level error and above are kept until sluice_log_take(). */
int sluice_eal_init(int argc, char **argv, int verbose);
int sluice_eal_cleanup(void);
size_t sluice_log_take(char *out, size_t len);
const char *sluice_version(void);
const char *sluice_runtime_dir(void);
/* Folder of EAL's drivers; empty if they are linked in. */
const char *sluice_plugin_dir(void);

/* Threads: each registered one has its own cache of free mbufs. */
int sluice_thread_enter(void);
void sluice_thread_leave(void);

/* Pools: one for each arena, with an mbuf per frame. The frames of an arena are first..first +
 * frames, and first >> shift is its number: all pools have the same shift, and no two the same
 * number. A pool outlives every device that was opened with it or still has one of its frames. */
int sluice_pool_create(struct sluice_pool **out, void *base, size_t mapped, size_t page, uint32_t first, uint32_t frames, uint32_t stride,
		       uint32_t shift);
void sluice_pool_free(struct sluice_pool *pool);
uint32_t sluice_pool_take(struct sluice_pool *pool, uint32_t *frames, uint32_t n);
void sluice_pool_put(struct sluice_pool *pool, const uint32_t *frames, uint32_t n);
uint32_t sluice_pool_available(const struct sluice_pool *pool);
const char *sluice_pool_ops(const struct sluice_pool *pool);

/* Devices. */
int sluice_device_probe(const char *devargs, const char *name, struct sluice_limits *out);
int sluice_device_start(const struct sluice_pool *pool, uint16_t port, struct sluice_setup *setup);
int sluice_device_promiscuous(uint16_t port, int on);
void sluice_device_close(uint16_t port);
int sluice_device_stats(uint16_t port, struct sluice_stats *out);
int sluice_device_link(uint16_t port, uint32_t *mbps);

/* Bursts of up to SLUICE_BURST packets. */
uint16_t sluice_rx_burst(const struct sluice_pool *pool, uint16_t port, uint16_t queue, struct sluice_packet *out, uint16_t n,
			 struct sluice_drops *drops);
uint16_t sluice_tx_burst(uint16_t port, uint16_t queue, const struct sluice_packet *packets, uint16_t n, struct sluice_drops *drops);

#endif
