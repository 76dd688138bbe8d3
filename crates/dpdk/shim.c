/* See shim.h. The invariants that the pool relies on:
 * - The mbuf of frame first + i has buf_addr = base + i * stride for good, so i = (buf_addr - base)
 *   / stride. The division is exact, hence a multiplication by the inverse of stride's odd part
 *   modulo 2^64 after a shift by the rest.
 * - A frame's number shifted is its arena's number, which finds the pool. One thread makes and
 *   frees pools; a packet thread gets a pool's frames only after it was made and before it is
 *   freed.
 * - A free mbuf (in the mempool or in one of the manager's stacks) has refcnt 1, nb_segs 1, next
 *   NULL, as DPDK requires. Receive passes on only such ones, and transmit sets all other fields
 *   that a driver reads. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_version.h>

#include "shim.h"

_Static_assert(RTE_PKTMBUF_HEADROOM == SLUICE_HEADROOM, "a received packet starts where Sluice expects it");
_Static_assert(sizeof(struct rte_mbuf) == 128, "an mbuf is two cache lines");
_Static_assert(SLUICE_CACHE <= RTE_MEMPOOL_CACHE_MAX_SIZE, "the cache of a thread is within DPDK's limit");
_Static_assert(sizeof(struct sluice_packet) == 8 && offsetof(struct sluice_packet, offset) == 4, "as in ffi.rs");
_Static_assert(sizeof(struct sluice_drops) == 24 && sizeof(struct sluice_stats) == 64, "as in ffi.rs");
_Static_assert(sizeof(struct sluice_limits) == 76 && sizeof(struct sluice_setup) == 12, "as in ffi.rs");

struct sluice_pool {
	struct rte_mempool *mp;
	char *base;
	uint64_t inverse;
	uint32_t shift, first, frames, stride, number;
	size_t mapped;
	struct rte_mbuf *of[]; /* frame - first -> mbuf */
};

#define MOST_POOLS 256
static struct sluice_pool *pools[MOST_POOLS];
static uint32_t pool_shift;

/* The pool of a frame, or NULL. */
static inline struct sluice_pool *pool_of(uint32_t frame)
{
	uint32_t number = frame >> pool_shift;
	struct sluice_pool *pool = number < MOST_POOLS ? pools[number] : NULL;
	return pool != NULL && frame - pool->first < pool->frames ? pool : NULL;
}

/* ---- log -------------------------------------------------------------------------------- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[2048];
static size_t log_len;
static int log_verbose;

static ssize_t log_write(void *cookie, const char *text, size_t len)
{
	(void)cookie;
	if (log_verbose)
		fwrite(text, 1, len, stderr);
	int level = rte_log_cur_msg_loglevel();
	if (level > 0 && level <= (int)RTE_LOG_ERR) {
		pthread_mutex_lock(&log_lock);
		/* The first lines have the cause; later ones are consequences. */
		size_t room = sizeof log_text - log_len, n = len < room ? len : room;
		memcpy(log_text + log_len, text, n);
		log_len += n;
		pthread_mutex_unlock(&log_lock);
	}
	return (ssize_t)len;
}

size_t sluice_log_take(char *out, size_t len)
{
	pthread_mutex_lock(&log_lock);
	size_t n = log_len < len ? log_len : len;
	memcpy(out, log_text, n);
	log_len = 0;
	pthread_mutex_unlock(&log_lock);
	return n;
}

/* ---- EAL and threads -------------------------------------------------------------------- */

int sluice_eal_init(int argc, char **argv, int verbose)
{
	static const cookie_io_functions_t functions = {.write = log_write};
	log_verbose = verbose;
	/* Otherwise DPDK writes to stderr and syslog. */
	FILE *stream = fopencookie(NULL, "w", functions);
	if (stream == NULL)
		return -ENOMEM;
	setvbuf(stream, NULL, _IOLBF, 4096);
	rte_openlog_stream(stream);
	return rte_eal_init(argc, argv) < 0 ? -(rte_errno ? rte_errno : EIO) : 0;
}

int sluice_eal_cleanup(void)
{
	return rte_eal_cleanup();
}

const char *sluice_version(void)
{
	return rte_version();
}

const char *sluice_runtime_dir(void)
{
	return rte_eal_get_runtime_dir();
}

const char *sluice_plugin_dir(void)
{
	return RTE_EAL_PMD_PATH;
}

int sluice_thread_enter(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return -EEXIST;
	return rte_thread_register() < 0 ? -(rte_errno ? rte_errno : EIO) : 0;
}

void sluice_thread_leave(void)
{
	for (unsigned int i = 0; i < MOST_POOLS; i++) {
		struct rte_mempool_cache *cache = pools[i] ? rte_mempool_default_cache(pools[i]->mp, rte_lcore_id()) : NULL;
		if (cache != NULL)
			rte_mempool_cache_flush(cache, pools[i]->mp);
	}
	rte_thread_unregister();
}

/* ---- pool ------------------------------------------------------------------------------- */

static inline uint32_t frame_of(const struct sluice_pool *pool, const struct rte_mbuf *m)
{
	uint64_t distance = (uint64_t)((char *)m->buf_addr - pool->base);
	uint64_t index = (distance >> pool->shift) * pool->inverse;
	return index < pool->frames ? pool->first + (uint32_t)index : UINT32_MAX;
}

static void note_mbuf(struct rte_mempool *mp, void *opaque, void *object, unsigned int index)
{
	(void)mp;
	(void)index;
	struct sluice_pool *pool = opaque;
	uint32_t frame = frame_of(pool, object);
	if (frame != UINT32_MAX)
		pool->of[frame - pool->first] = object;
}

/* Maps or unmaps an arena's memory for all devices. Drivers without DMA refuse, rightly. */
static void map_for_devices(const struct sluice_pool *pool, int on)
{
	uint16_t port;
	RTE_ETH_FOREACH_DEV(port) {
		struct rte_eth_dev_info info = {0};
		if (rte_eth_dev_info_get(port, &info) < 0 || info.device == NULL)
			continue;
		if (on)
			rte_dev_dma_map(info.device, pool->base, (rte_iova_t)pool->base, pool->mapped);
		else
			rte_dev_dma_unmap(info.device, pool->base, (rte_iova_t)pool->base, pool->mapped);
	}
}

int sluice_pool_create(struct sluice_pool **out, void *base, size_t mapped, size_t page, uint32_t first, uint32_t frames, uint32_t stride,
		       uint32_t shift)
{
	char name[32];
	struct rte_pktmbuf_extmem memory = {
		.buf_ptr = base, .buf_iova = (rte_iova_t)base, .buf_len = (size_t)frames * stride, .elt_size = (uint16_t)stride};
	if (stride == 0 || stride > UINT16_MAX || frames == 0 || memory.buf_len > mapped)
		return -EINVAL;
	uint32_t number = first >> shift;
	int is_first = 1;
	for (unsigned int i = 0; i < MOST_POOLS; i++)
		is_first &= pools[i] == NULL;
	if (number >= MOST_POOLS || pools[number] != NULL || (!is_first && shift != pool_shift))
		return -EEXIST;
	snprintf(name, sizeof name, "sluice%u", number);
	struct sluice_pool *pool = calloc(1, sizeof *pool + frames * sizeof pool->of[0]);
	if (pool == NULL)
		return -ENOMEM;
	pool->base = base;
	pool->first = first;
	pool->frames = frames;
	pool->number = number;
	pool->stride = stride;
	pool->mapped = mapped;
	pool->shift = (uint32_t)__builtin_ctz(stride);
	uint64_t odd = stride >> pool->shift, inverse = odd;
	/* Newton: each step doubles the correct bits; an odd number is its own inverse modulo 8. */
	for (int i = 0; i < 5; i++)
		inverse *= 2 - odd * inverse;
	pool->inverse = inverse;

	if (rte_extmem_register(base, mapped, NULL, 0, page) < 0) {
		int error = rte_errno;
		free(pool);
		return -error;
	}
	/* Last in, first out also between threads: a queue would circulate all frames. */
	rte_mbuf_set_user_mempool_ops("lf_stack");
	pool->mp = rte_pktmbuf_pool_create_extbuf(name, frames, SLUICE_CACHE, 0, (uint16_t)stride, SOCKET_ID_ANY, &memory, 1);
	if (pool->mp == NULL) {
		rte_mbuf_set_user_mempool_ops(RTE_MBUF_DEFAULT_MEMPOOL_OPS);
		pool->mp = rte_pktmbuf_pool_create_extbuf(name, frames, SLUICE_CACHE, 0, (uint16_t)stride, SOCKET_ID_ANY, &memory, 1);
	}
	if (pool->mp == NULL) {
		int error = rte_errno ? rte_errno : ENOMEM;
		rte_extmem_unregister(base, mapped);
		free(pool);
		return -error;
	}
	rte_mempool_obj_iter(pool->mp, note_mbuf, pool);
	for (uint32_t frame = 0; frame < frames; frame++)
		if (pool->of[frame] == NULL) {
			sluice_pool_free(pool);
			return -EPROTO;
		}
	map_for_devices(pool, 1);
	pool_shift = shift;
	pools[number] = pool;
	*out = pool;
	return 0;
}

void sluice_pool_free(struct sluice_pool *pool)
{
	if (pools[pool->number] == pool) {
		pools[pool->number] = NULL;
		map_for_devices(pool, 0);
	}
	rte_mempool_free(pool->mp);
	rte_extmem_unregister(pool->base, pool->mapped);
	free(pool);
}

uint32_t sluice_pool_take(struct sluice_pool *pool, uint32_t *frames, uint32_t n)
{
	struct rte_mbuf *mbufs[SLUICE_CACHE];
	uint32_t got = 0;
	uint32_t want = n < SLUICE_CACHE ? n : SLUICE_CACHE;
	/* DPDK gives all or nothing, so ask for less and less. Bypass the thread's cache first:
	 * drivers depend on it. */
	while (got < n && want > 0) {
		if (want > n - got)
			want = n - got;
		if (rte_mempool_generic_get(pool->mp, (void **)mbufs, want, NULL) < 0 &&
		    (want > 1 || rte_mempool_get_bulk(pool->mp, (void **)mbufs, want) < 0)) {
			want /= 2;
			continue;
		}
		for (uint32_t i = 0; i < want; i++)
			frames[got + i] = frame_of(pool, mbufs[i]);
		got += want;
	}
	return got;
}

void sluice_pool_put(struct sluice_pool *pool, const uint32_t *frames, uint32_t n)
{
	struct rte_mbuf *mbufs[SLUICE_CACHE];
	uint32_t k = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (frames[i] - pool->first < pool->frames)
			mbufs[k++] = pool->of[frames[i] - pool->first];
		if (k == SLUICE_CACHE || (i + 1 == n && k > 0)) {
			rte_mempool_generic_put(pool->mp, (void **)mbufs, k, NULL);
			k = 0;
		}
	}
}

uint32_t sluice_pool_available(const struct sluice_pool *pool)
{
	return rte_mempool_avail_count(pool->mp);
}

const char *sluice_pool_ops(const struct sluice_pool *pool)
{
	return rte_mempool_get_ops(pool->mp->ops_index)->name;
}

/* ---- devices ---------------------------------------------------------------------------- */

int sluice_device_probe(const char *devargs, const char *name, struct sluice_limits *out)
{
	uint16_t port;
	/* A PCI device allowed at start exists already. */
	if (rte_eth_dev_get_port_by_name(name, &port) < 0) {
		rte_log_set_level_pattern("pmd.net.af_packet", RTE_LOG_ERR);
		int error = rte_dev_probe(devargs);
		if (error < 0)
			return error;
		if (rte_eth_dev_get_port_by_name(name, &port) < 0)
			return -ENODEV;
	}
	struct rte_eth_dev_info info;
	int error = rte_eth_dev_info_get(port, &info);
	if (error < 0)
		return error;
	uint64_t l3 = RTE_ETH_RSS_IP & info.flow_type_rss_offloads, l4 = (RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP) & info.flow_type_rss_offloads;
	memset(out, 0, sizeof *out);
	out->port = port;
	out->max_rx_queues = info.max_rx_queues;
	out->max_tx_queues = info.max_tx_queues;
	out->min_mtu = info.min_mtu;
	out->max_mtu = info.max_mtu;
	out->can_rss = l3 != 0 || l4 != 0;
	snprintf(out->driver, sizeof out->driver, "%s", info.driver_name);
	return 0;
}

int sluice_device_start(const struct sluice_pool *pool, uint16_t port, struct sluice_setup *setup)
{
	/* With this key Toeplitz hashes both directions of a flow alike (Woo and Park, 2012). */
	uint8_t key[64];
	for (size_t i = 0; i < sizeof key; i += 2) {
		key[i] = 0x6d;
		key[i + 1] = 0x5a;
	}
	struct rte_eth_dev_info info;
	int error = rte_eth_dev_info_get(port, &info);
	if (error < 0)
		return error;
	/* All offloads off: packets are as on the wire. */
	struct rte_eth_conf conf = {.rxmode = {.mtu = setup->mtu}};
	if (setup->rss && setup->rx_queues > 1) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP) & info.flow_type_rss_offloads;
		if (info.hash_key_size <= sizeof key) {
			conf.rx_adv_conf.rss_conf.rss_key = info.hash_key_size ? key : NULL;
			conf.rx_adv_conf.rss_conf.rss_key_len = info.hash_key_size;
		}
	}
	setup->stage = 0;
	error = rte_eth_dev_configure(port, setup->rx_queues, setup->tx_queues, &conf);
	if (error < 0)
		return error;
	/* Arenas are not DPDK's own memory: map all of them for a device behind an IOMMU, since it
	 * sends from any. Drivers without DMA refuse, rightly. */
	for (unsigned int i = 0; i < MOST_POOLS; i++) {
		if (pools[i] == NULL)
			continue;
		error = rte_dev_dma_map(info.device, pools[i]->base, (rte_iova_t)pools[i]->base, pools[i]->mapped);
		if (error < 0 && rte_errno != ENOTSUP && rte_errno != EEXIST &&
		    strcmp(rte_bus_name(rte_dev_bus(info.device)), "pci") == 0)
			return -rte_errno;
	}
	uint16_t rx = setup->descriptors, tx = setup->descriptors;
	error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
	if (error < 0)
		return error;
	setup->descriptors = rx;
	int socket = rte_eth_dev_socket_id(port);
	setup->stage = 1;
	for (uint16_t queue = 0; queue < setup->rx_queues; queue++)
		if ((error = rte_eth_rx_queue_setup(port, queue, rx, (unsigned int)socket, NULL, pool->mp)) < 0)
			return error;
	setup->stage = 2;
	for (uint16_t queue = 0; queue < setup->tx_queues; queue++)
		if ((error = rte_eth_tx_queue_setup(port, queue, tx, (unsigned int)socket, NULL)) < 0)
			return error;
	setup->stage = 3;
	error = rte_eth_dev_start(port);
	if (error < 0)
		return error;
	/* Silences a message per packet: it cannot put VLAN tags back in external memory, but
	 * sluice_rx_burst() does. */
	rte_log_set_level_pattern("pmd.net.af_packet", RTE_LOG_CRIT);
	return 0;
}

int sluice_device_promiscuous(uint16_t port, int on)
{
	return on ? rte_eth_promiscuous_enable(port) : rte_eth_promiscuous_disable(port);
}

void sluice_device_close(uint16_t port)
{
	struct rte_eth_dev_info info = {0};
	if (rte_eth_dev_info_get(port, &info) < 0)
		return;
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	for (unsigned int i = 0; i < MOST_POOLS; i++)
		if (pools[i] != NULL)
			rte_dev_dma_unmap(info.device, pools[i]->base, (rte_iova_t)pools[i]->base, pools[i]->mapped);
	rte_dev_remove(info.device);
}

int sluice_device_stats(uint16_t port, struct sluice_stats *out)
{
	struct rte_eth_stats stats;
	int error = rte_eth_stats_get(port, &stats);
	if (error < 0)
		return error;
	*out = (struct sluice_stats){
		.rx_packets = stats.ipackets, .tx_packets = stats.opackets, .rx_bytes = stats.ibytes, .tx_bytes = stats.obytes,
		.rx_missed = stats.imissed, .rx_errors = stats.ierrors, .tx_errors = stats.oerrors, .rx_no_frame = stats.rx_nombuf};
	return 0;
}

int sluice_device_link(uint16_t port, uint32_t *mbps)
{
	struct rte_eth_link link;
	int error = rte_eth_link_get_nowait(port, &link);
	if (error < 0)
		return error;
	*mbps = link.link_speed;
	return link.link_status == RTE_ETH_LINK_UP;
}

/* ---- bursts ----------------------------------------------------------------------------- */

/* Puts a VLAN tag back before the EtherType: packet sockets deliver it beside the packet. */
static inline int put_tag_back(struct rte_mbuf *m)
{
	if (m->data_off < 4 || m->data_len < 2 * RTE_ETHER_ADDR_LEN)
		return 0;
	m->data_off -= 4;
	m->data_len += 4;
	m->pkt_len += 4;
	uint8_t *start = rte_pktmbuf_mtod(m, uint8_t *);
	memmove(start, start + 4, 2 * RTE_ETHER_ADDR_LEN);
	start[12] = 0x81;
	start[13] = 0x00;
	start[14] = (uint8_t)(m->vlan_tci >> 8);
	start[15] = (uint8_t)m->vlan_tci;
	return 1;
}

uint16_t sluice_rx_burst(const struct sluice_pool *pool, uint16_t port, uint16_t queue, struct sluice_packet *out, uint16_t n,
			 struct sluice_drops *drops)
{
	struct rte_mbuf *mbufs[SLUICE_BURST];
	uint16_t k = 0, got = rte_eth_rx_burst(port, queue, mbufs, n < SLUICE_BURST ? n : SLUICE_BURST);
	for (uint16_t i = 0; i < got; i++) {
		struct rte_mbuf *m = mbufs[i];
		uint32_t frame = frame_of(pool, m);
		if (unlikely(frame == UINT32_MAX)) {
			drops->rx_foreign++;
			rte_pktmbuf_free(m);
			continue;
		}
		if (unlikely(m->nb_segs != 1 || m->data_len == 0 || ((m->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) && !put_tag_back(m)))) {
			drops->rx_too_long++;
			rte_pktmbuf_free(m);
			continue;
		}
		out[k++] = (struct sluice_packet){.frame = frame, .offset = m->data_off, .len = m->data_len};
	}
	return k;
}

uint16_t sluice_tx_burst(uint16_t port, uint16_t queue, const struct sluice_packet *packets, uint16_t n,
			 struct sluice_drops *drops)
{
	struct rte_mbuf *mbufs[SLUICE_BURST];
	uint16_t k = 0;
	if (n > SLUICE_BURST)
		n = SLUICE_BURST;
	for (; k < n; k++) {
		const struct sluice_packet *p = &packets[k];
		const struct sluice_pool *pool = pool_of(p->frame);
		if (unlikely(pool == NULL || p->len == 0 || (uint32_t)p->offset + p->len > pool->stride))
			break;
		struct rte_mbuf *m = pool->of[p->frame - pool->first];
		m->data_off = p->offset;
		m->data_len = p->len;
		m->pkt_len = p->len;
		m->nb_segs = 1;
		m->ol_flags = RTE_MBUF_F_EXTERNAL;
		m->tx_offload = 0;
		m->next = NULL;
		rte_mbuf_refcnt_set(m, 1);
		mbufs[k] = m;
	}
	uint16_t sent = k > 0 ? rte_eth_tx_burst(port, queue, mbufs, k) : 0;
	if (unlikely(k < n && sent == k)) {
		/* The packet that broke the burst counts as taken; its frame, if valid, is freed. */
		drops->tx_invalid++;
		struct sluice_pool *pool = pool_of(packets[k].frame);
		if (pool != NULL)
			sluice_pool_put(pool, &packets[k].frame, 1);
		return sent + 1;
	}
	return sent;
}
