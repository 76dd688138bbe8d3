//! The safe interface of the shim.

use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_shm::arena::{Arena, Geometry};
use sluice_shm::memory::HUGEPAGE;

use crate::error::{device_hint, start_hint, words};
use crate::options::{device_argument, device_name};
use crate::{DeviceOptions, DpdkError, Drops, EalOptions, Link, Packet, Stats};
use crate::{ffi, interface};

/// EAL can be started once; DPDK itself refuses a second try after a failure.
static STARTED: AtomicBool = AtomicBool::new(false);

/// DPDK's environment. Clones share it; it ends with the last clone, pool and device.
#[derive(Debug, Clone)]
pub struct Eal(Arc<EalInner>);

#[derive(Debug)]
struct EalInner {
    /// Port numbers of open [`Device`]s.
    open: Mutex<Vec<u16>>,
}

impl Drop for EalInner {
    fn drop(&mut self) {
        // SAFETY: EAL was started, and all that was made from it held an Arc of this and is gone.
        unsafe { ffi::sluice_eal_cleanup() };
    }
}

impl Eal {
    /// Starts DPDK, once in a process. The calling thread keeps its affinity.
    ///
    /// # Errors
    /// [`DpdkError::StartedBefore`]; [`DpdkError::Start`] with DPDK's log.
    pub fn init(options: &EalOptions) -> Result<Self, DpdkError> {
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(DpdkError::StartedBefore);
        }
        let allowed = rustix::thread::sched_getaffinity(None)
            .map_err(|error| DpdkError::Start { hint: error.to_string(), log: String::new() })?;
        let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let arguments: Vec<CString> =
            options.arguments(&cpus).into_iter().map(|a| CString::new(a).expect("no PCI address has a NUL")).collect();
        let verbose = i32::from(options.verbose);
        // EAL makes its starting thread an lcore and pins it, so it gets a separate thread.
        let code = std::thread::Builder::new()
            .name("dpdk-init".into())
            .spawn(move || {
                // Never freed: EAL keeps pointers to its arguments.
                let mut argv: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
                argv.push(std::ptr::null_mut());
                let argv = argv.leak();
                // SAFETY: argv has one NUL-ended string per argument and a null pointer behind
                // them, for ever; this happens once.
                unsafe { ffi::sluice_eal_init(argv.len() as i32 - 1, argv.as_mut_ptr(), verbose) }
            })
            .and_then(|thread| thread.join().map_err(|_| std::io::Error::other("the thread that starts DPDK failed")))
            .map_err(|error| DpdkError::Start { hint: error.to_string(), log: log() })?;
        remove_runtime_dir();
        if code < 0 {
            return Err(DpdkError::Start { hint: start_hint(options.hugepages, code), log: log() });
        }
        Ok(Self(Arc::new(EalInner { open: Mutex::default() })))
    }

    /// DPDK's name and version.
    pub fn version() -> String {
        // SAFETY: rte_version() returns a NUL-ended string in static memory.
        unsafe { CStr::from_ptr(ffi::sluice_version()) }.to_string_lossy().into_owned()
    }
}

/// The folder of EAL's drivers.
pub(crate) fn plugin_folder() -> std::path::PathBuf {
    // SAFETY: the shim returns a NUL-ended string in static memory.
    let folder = unsafe { CStr::from_ptr(ffi::sluice_plugin_dir()) };
    folder.to_string_lossy().into_owned().into()
}

/// Removes EAL's folder for shared memory, unused here, so that even a kill leaves no file.
fn remove_runtime_dir() {
    // SAFETY: EAL returns a NUL-ended string in static memory, empty if it failed before.
    let folder = unsafe { CStr::from_ptr(ffi::sluice_runtime_dir()) }.to_string_lossy().into_owned();
    let folder = Path::new(&folder);
    // Only empty folders go; the parent stays while other DPDK programs run.
    if std::fs::remove_dir(folder).is_ok() {
        let _ = folder.parent().map(std::fs::remove_dir);
    }
}

/// DPDK's error lines since the last call, in one line.
fn log() -> String {
    let mut text = [0u8; 2048];
    // SAFETY: the shim writes at most text.len() bytes.
    let len = unsafe { ffi::sluice_log_take(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..len.min(text.len())])
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// The memory pool over an arena: one mbuf per frame. Clones share it.
#[derive(Debug, Clone)]
pub struct MbufPool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    raw: NonNull<ffi::RawPool>,
    // Order matters: the pool's memory is dropped after it, and EAL last.
    arena: Arena,
    eal: Eal,
}

// SAFETY: DPDK's mempool may be used by any number of threads at once; the rest of the shim's pool
// is written once, before it is shared.
unsafe impl Send for PoolInner {}
// SAFETY: as above.
unsafe impl Sync for PoolInner {}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let open = self.eal.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_empty() {
            // SAFETY: raw came from sluice_pool_create(), no device is left that could have one of
            // its frames, and the Mutex prevents others from making or opening one meanwhile.
            unsafe { ffi::sluice_pool_free(self.raw.as_ptr()) };
        } else {
            // A device sends frames of all pools, maybe of this one: pool and memory stay.
            std::mem::forget(self.arena.clone());
        }
    }
}

impl MbufPool {
    /// Makes the pool over all frames of the only arena. From then on it holds all free frames.
    ///
    /// # Errors
    /// [`DpdkError::Pool`] if DPDK lacks the memory for the mbufs, or a pool exists already.
    pub fn over(eal: &Eal, arena: &Arena) -> Result<Self, DpdkError> {
        Self::beside(eal, arena, 31)
    }

    /// Makes the pool over all frames of one of several arenas.
    ///
    /// A frame's number shifted by `shift` bits is its arena's number, for all of them. Every
    /// device can send frames of any of them.
    ///
    /// # Errors
    /// [`DpdkError::Pool`] if DPDK lacks memory for the mbufs, or this arena has a pool already.
    pub fn beside(eal: &Eal, arena: &Arena, shift: u32) -> Result<Self, DpdkError> {
        const PAGE: usize = 4096;
        let geometry = arena.geometry();
        let (base, len) = arena.raw();
        let mapped = len.next_multiple_of(PAGE);
        let page = if (base as usize).is_multiple_of(HUGEPAGE) && mapped.is_multiple_of(HUGEPAGE) { HUGEPAGE } else { PAGE };
        let mut raw = std::ptr::null_mut();
        let Geometry { first, frames, stride } = geometry;
        let open = eal.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: base..base + len is mapped for as long as the arena lives, which this pool holds;
        // mappings consist of whole pages. The Mutex ensures that one thread at a time makes or
        // drops pools.
        let code = unsafe { ffi::sluice_pool_create(&mut raw, base.cast(), mapped, page, first, frames, stride, shift) };
        drop(open);
        match NonNull::new(raw) {
            Some(raw) if code == 0 => Ok(Self(Arc::new(PoolInner { raw, arena: arena.clone(), eal: eal.clone() }))),
            _ => Err(DpdkError::Pool { frames, reason: words(code), log: log() }),
        }
    }

    /// The arena that the frames lie in.
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// Takes up to `frames.len()` free frames; returns their number.
    pub fn take(&self, frames: &mut [u32]) -> usize {
        // SAFETY: the shim writes at most this number of frames.
        unsafe { ffi::sluice_pool_take(self.0.raw.as_ptr(), frames.as_mut_ptr(), frames.len() as u32) as usize }
    }

    /// Returns frames that the caller took or received. Ignores invalid numbers.
    pub fn put(&self, frames: &[u32]) {
        // SAFETY: the shim reads this number of frames, and checks each.
        unsafe { ffi::sluice_pool_put(self.0.raw.as_ptr(), frames.as_ptr(), frames.len() as u32) };
    }

    /// Number of free frames, including the caches of registered threads. Slow: it counts.
    pub fn available(&self) -> u32 {
        // SAFETY: raw is a pool.
        unsafe { ffi::sluice_pool_available(self.0.raw.as_ptr()) }
    }

    /// Name of DPDK's free list behind the pool.
    pub fn kind(&self) -> String {
        // SAFETY: raw is a pool; the name is NUL-ended and lives as long as EAL.
        unsafe { CStr::from_ptr(ffi::sluice_pool_ops(self.0.raw.as_ptr())) }.to_string_lossy().into_owned()
    }

    /// As [`Eal::enter_thread`], with the same errors.
    pub fn enter_thread(&self) -> Result<PoolThread, DpdkError> {
        self.0.eal.enter_thread()
    }
}

impl Eal {
    /// Gives the calling thread caches of free mbufs until the value is dropped on it.
    ///
    /// A thread without them works, but takes each frame for a device from the common list.
    ///
    /// # Errors
    /// [`DpdkError::Thread`] if the thread has them already, or too many threads have.
    pub fn enter_thread(&self) -> Result<PoolThread, DpdkError> {
        match ffi::sluice_thread_enter() {
            0 => Ok(PoolThread { _eal: self.clone(), here: PhantomData }),
            code => Err(DpdkError::Thread { reason: words(code) }),
        }
    }
}

/// The calling thread has caches of free mbufs while this lives.
#[derive(Debug)]
pub struct PoolThread {
    _eal: Eal,
    /// Not Send and not Sync: the caches are this thread's.
    here: PhantomData<*const ()>,
}

impl Drop for PoolThread {
    fn drop(&mut self) {
        // This thread entered, and no other can leave for it.
        ffi::sluice_thread_leave();
    }
}

/// An open device. Clones share it; the last clone or queue closes it.
#[derive(Debug, Clone)]
pub struct Device(Arc<DeviceInner>);

#[derive(Debug)]
struct DeviceInner {
    port: u16,
    name: String,
    driver: String,
    descriptors: u16,
    rss: bool,
    /// Whether promiscuous mode must be ended: it was enabled here.
    promiscuous: bool,
    pool: MbufPool,
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // SAFETY: no queue is left, for each holds an Arc of this; port is open by us.
        unsafe {
            if self.promiscuous {
                ffi::sluice_device_promiscuous(self.port, 0);
            }
            ffi::sluice_device_close(self.port);
        }
        self.pool.0.eal.forget(self.port);
        log();
    }
}

impl Eal {
    /// Marks a port as taken; false if it was.
    fn take(&self, port: u16) -> bool {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let free = !open.contains(&port);
        if free {
            open.push(port);
        }
        free
    }

    fn forget(&self, port: u16) {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|p| *p != port);
    }
}

impl Device {
    /// Opens and starts a device: a virtual one by its devargs (`net_af_packet0,iface=veth0`), a
    /// NIC by its PCI address.
    ///
    /// Returns the device and its queues. May be called while packets flow through others.
    ///
    /// With more than one queue, a capable device spreads flows over them, both directions of a
    /// flow to the same one. It is in promiscuous mode while it is open, if it has one.
    ///
    /// # Errors
    /// [`DpdkError::Device`], [`DpdkError::Queues`] or [`DpdkError::Busy`], which say what to do.
    pub fn open(pool: &MbufPool, devargs: &str, options: &DeviceOptions) -> Result<(Self, Vec<Queue>), DpdkError> {
        let fail = |doing, code| DpdkError::Device {
            device: devargs.to_owned(),
            doing,
            hint: device_hint(Path::new("/"), |name| interface::flags(name).is_some(), devargs, code),
            log: log(),
        };
        log(); // Discards messages about other devices.
        let name = device_name(devargs).to_owned();
        let (Ok(c_devargs), Ok(c_name)) = (CString::new(devargs), CString::new(name.as_str())) else {
            return Err(fail("open", -libc::EINVAL));
        };
        let mut limits =
            ffi::DeviceLimits { port: 0, max_rx_queues: 0, max_tx_queues: 0, min_mtu: 0, max_mtu: 0, can_rss: 0, driver: [0; 64] };
        // An interface that is promiscuous already stays so.
        let flags = device_argument(devargs, "iface").and_then(interface::flags).unwrap_or(0);
        let was_promiscuous = flags & interface::PROMISCUOUS != 0;
        // SAFETY: both strings end in NUL; limits is written only.
        let code = unsafe { ffi::sluice_device_probe(c_devargs.as_ptr(), c_name.as_ptr(), &mut limits) };
        if code < 0 {
            return Err(fail("open", code));
        }
        let port = limits.port;
        if !pool.0.eal.take(port) {
            return Err(DpdkError::Busy { device: name });
        }
        let driver = CStr::from_bytes_until_nul(&limits.driver).map(|d| d.to_string_lossy().into_owned()).unwrap_or_default();
        // From here on an error closes the device by dropping it.
        let mut inner = DeviceInner {
            port,
            name,
            driver,
            descriptors: options.descriptors,
            rss: limits.can_rss != 0 && options.queues > 1,
            promiscuous: false,
            pool: pool.clone(),
        };
        let have = limits.max_rx_queues.min(limits.max_tx_queues);
        if options.queues == 0 || options.queues > have {
            let hint = if inner.driver == "net_af_packet" {
                format!("add `qpairs={}` to its devargs", options.queues)
            } else {
                "lower the port's `queues`".to_owned()
            };
            let (device, driver) = (inner.name.clone(), inner.driver.clone());
            return Err(DpdkError::Queues { device, driver, wanted: options.queues, have, hint });
        }
        let mut setup = ffi::DeviceSetup {
            rx_queues: options.queues,
            tx_queues: options.queues,
            descriptors: options.descriptors,
            mtu: options.mtu.map_or(0, |mtu| mtu.clamp(limits.min_mtu, limits.max_mtu.max(limits.min_mtu))),
            rss: u16::from(inner.rss),
            stage: 0,
        };
        // SAFETY: port is ours, the pool outlives it, and setup is a valid structure.
        let code = unsafe { ffi::sluice_device_start(pool.0.raw.as_ptr(), port, &mut setup) };
        if code < 0 {
            let doing =
                ["configure", "set up a receive queue of", "set up a transmit queue of", "start"][usize::from(setup.stage.min(3))];
            let error = if code == -libc::ENOMEM {
                let hint = format!(
                    "out of memory or of frames: {} queues of {} descriptors keep a frame each; raise `memory.frames` or lower \
                     `descriptors`",
                    options.queues, setup.descriptors
                );
                DpdkError::Device { device: devargs.to_owned(), doing, hint, log: log() }
            } else {
                fail(doing, code)
            };
            return Err(error);
        }
        inner.descriptors = setup.descriptors;
        // SAFETY: port is open. A device without the mode returns an error, and needs none.
        inner.promiscuous = unsafe { ffi::sluice_device_promiscuous(port, 1) } == 0 && !was_promiscuous;
        log(); // Messages of a device that started do not matter.
        let device = Self(Arc::new(inner));
        let queues = (0..options.queues).map(|index| Queue { device: device.clone(), index, drops: Drops::default() }).collect();
        Ok((device, queues))
    }

    /// Name, such as `net_null0` or a PCI address.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        &self.0.driver
    }

    /// Descriptors of each queue.
    pub fn descriptors(&self) -> u16 {
        self.0.descriptors
    }

    /// Whether the device itself spreads flows over its queues.
    pub fn has_rss(&self) -> bool {
        self.0.rss
    }

    /// The device's counters. May make system calls.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // SAFETY: port is open; stats is only written. A device without counters leaves zeros.
        unsafe { ffi::sluice_device_stats(self.0.port, &mut stats) };
        stats
    }

    /// State of the link. May make system calls.
    pub fn link(&self) -> Link {
        let mut mbps = 0;
        // SAFETY: port is open; mbps is only written.
        let up = unsafe { ffi::sluice_device_link(self.0.port, &mut mbps) } > 0;
        Link { up, mbps }
    }
}

/// A queue of a device, for receiving and sending by one thread at a time.
#[derive(Debug)]
pub struct Queue {
    device: Device,
    index: u16,
    drops: Drops,
}

impl Queue {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of the queue.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Packets that this queue dropped.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// Receives up to `out.len()` packets, at most a burst; returns their number and their frames.
    #[inline]
    pub fn rx_burst(&mut self, out: &mut [Packet]) -> usize {
        let n = out.len().min(ffi::BURST) as u16;
        let device = &self.device.0;
        // SAFETY: the device is open and has this queue, which only this value calls; the shim
        // writes at most n packets.
        let got = unsafe {
            ffi::sluice_rx_burst(device.pool.0.raw.as_ptr(), device.port, self.index, out.as_mut_ptr(), n, &mut self.drops)
        };
        usize::from(got)
    }

    /// Sends the first packets that the device takes; returns their number.
    ///
    /// The device owns the frames of those, and returns them to the pool after sending; the caller
    /// keeps the others. The caller must own the frames: one that is sent twice, or sent and
    /// returned, goes to two places at once. A packet outside of its frame counts as taken, and is
    /// dropped.
    #[inline]
    pub fn tx_burst(&mut self, packets: &[Packet]) -> usize {
        let device = &self.device.0;
        let mut taken = 0;
        while taken < packets.len() {
            let rest = &packets[taken..];
            let n = rest.len().min(ffi::BURST) as u16;
            // SAFETY: as in rx_burst(); the shim reads n packets and checks each.
            let sent = unsafe { ffi::sluice_tx_burst(device.port, self.index, rest.as_ptr(), n, &mut self.drops) };
            taken += usize::from(sent);
            if sent == 0 {
                break;
            }
        }
        taken
    }
}
