//! Storage for C.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::time::Duration;

use super::{CContext, Code, fail, guard, remember};
use crate::storage::{At, File, IoResult, RequestError, Storage, StorageOptions};

/// The header's SLUICE_APPEND.
const APPEND: u64 = u64::MAX;

/// `struct sluice_storage_options`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CStorageOptions {
    flush_ns: u64,
    batch_bytes: u32,
    batch_operations: u32,
}

const _: () = assert!(size_of::<CStorageOptions>() == 16 && std::mem::offset_of!(CStorageOptions, batch_operations) == 12);

/// `sluice_done`.
type Done = unsafe extern "C" fn(context: *mut c_void, error: c_int, data: *const u8, len: u32);

/// `sluice_storage`.
pub struct CStorage {
    storage: Storage,
    /// The file of the last request: most are for the same one.
    last: RefCell<Option<File>>,
}

impl CStorage {
    fn file(&self, fd: c_int) -> File {
        use std::os::fd::AsRawFd;
        let mut last = self.last.borrow_mut();
        match &*last {
            Some(file) if file.as_raw_fd() == fd => file.clone(),
            _ => last.insert(File::lent(fd)).clone(),
        }
    }
}

fn callback(done: Option<Done>, context: *mut c_void) -> impl FnOnce(IoResult<'_>) + 'static {
    move |outcome| {
        let Some(done) = done else { return };
        let (error, data, len) = match outcome {
            Ok(bytes) => (0, bytes.as_ptr(), bytes.len()),
            Err(error) => (error.errno.raw_os_error(), std::ptr::null(), error.done),
        };
        // SAFETY: function and context come from the NF's request; the bytes live through the call.
        unsafe { done(context, error, data, len as u32) };
    }
}

fn code(result: Result<(), RequestError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            remember(&error.to_string());
            match error {
                RequestError::Size { .. } => Code::Argument as c_int,
                RequestError::Full => Code::Full as c_int,
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_storage_open(
    context: *const CContext,
    given: *const CStorageOptions,
    out: *mut *mut CStorage,
) -> c_int {
    guard(|| {
        // SAFETY: null or valid, as the header requires.
        let Some(context) = (unsafe { context.as_ref() }).filter(|_| !out.is_null()) else { return fail(Code::Argument) };
        // SAFETY: not null, and the header requires a writable pointer.
        unsafe { *out = std::ptr::null_mut() };
        // SAFETY: null or valid, as the header requires.
        let options = unsafe { given.as_ref() }.map_or_else(StorageOptions::default, |given| StorageOptions {
            batch_bytes: given.batch_bytes as usize,
            batch_operations: given.batch_operations as usize,
            flush_interval: Duration::from_nanos(given.flush_ns),
        });
        match Storage::new(&context.context, &options) {
            Err(error) => {
                remember(&error.to_string());
                Code::Storage as c_int
            }
            Ok(storage) => {
                let storage = Box::new(CStorage { storage, last: RefCell::default() });
                // SAFETY: as above.
                unsafe { *out = Box::into_raw(storage) };
                0
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_read_data(
    storage: *const CStorage,
    fd: c_int,
    offset: u64,
    len: u32,
    done: Option<Done>,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: null or from sluice_storage_open, as the header requires.
        let Some(storage) = (unsafe { storage.as_ref() }).filter(|_| fd >= 0) else { return fail(Code::Argument) };
        // SLUICE_APPEND equals the library's number for a file's position.
        code(storage.storage.read_data(&storage.file(fd), offset, len as usize, callback(done, context)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_write_data(
    storage: *const CStorage,
    fd: c_int,
    offset: u64,
    data: *const u8,
    len: u32,
    done: Option<Done>,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: null or from sluice_storage_open, as the header requires.
        let Some(storage) = (unsafe { storage.as_ref() }).filter(|_| fd >= 0 && !data.is_null()) else {
            return fail(Code::Argument);
        };
        // SAFETY: not null, and the header requires `len` bytes.
        let data = unsafe { std::slice::from_raw_parts(data, len as usize) };
        let at = if offset == APPEND { At::End } else { At::Byte(offset) };
        code(storage.storage.write_data(&storage.file(fd), at, data, callback(done, context)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_storage_poll(storage: *const CStorage) -> c_int {
    guard(|| {
        // SAFETY: null or from sluice_storage_open, as the header requires.
        let Some(storage) = (unsafe { storage.as_ref() }) else { return fail(Code::Argument) };
        storage.storage.poll();
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_storage_flush(storage: *const CStorage) -> c_int {
    guard(|| {
        // SAFETY: null or from sluice_storage_open, as the header requires.
        let Some(storage) = (unsafe { storage.as_ref() }) else { return fail(Code::Argument) };
        storage.storage.flush();
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_storage_close(storage: *mut CStorage) {
    guard(|| {
        if !storage.is_null() {
            // SAFETY: not null, from sluice_storage_open; the header forbids its use afterwards.
            drop(unsafe { Box::from_raw(storage) });
        }
        0
    });
}
