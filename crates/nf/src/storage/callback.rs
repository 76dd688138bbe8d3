//! A closure that is called once, without an allocation of its own where it is small.
//!
//! A storage request is made for a packet, and a handler must not allocate for a packet. So a
//! closure of up to six words lies in the request itself; a larger one is boxed.

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};

use super::error::IoResult;

const WORDS: usize = 6;

type ClosureSpace = MaybeUninit<[usize; WORDS]>;

/// Operations on the closure in a [`ClosureSpace`].
struct Table {
    /// Moves the closure out of the room and calls it.
    call: unsafe fn(*mut ClosureSpace, IoResult<'_>),
    drop: unsafe fn(*mut ClosureSpace),
}

struct Of<F>(PhantomData<F>);

impl<F: FnOnce(IoResult<'_>) + 'static> Of<F> {
    const TABLE: Table = Table {
        call: |room, outcome| {
            // SAFETY: the room holds an F (see Callback::inline), which is read only once (see
            // call).
            let f = unsafe { room.cast::<F>().read() };
            f(outcome);
        },
        // SAFETY: the room holds an F, which is not used afterwards.
        drop: |room| unsafe { room.cast::<F>().drop_in_place() },
    };
}

pub(super) struct Callback {
    room: ClosureSpace,
    table: &'static Table,
    /// Closures may hold what must stay on its thread.
    stays: PhantomData<*mut ()>,
}

impl Callback {
    pub(super) fn new<F: FnOnce(IoResult<'_>) + 'static>(f: F) -> Self {
        if size_of::<F>() <= size_of::<ClosureSpace>() && align_of::<F>() <= align_of::<ClosureSpace>() {
            Self::inline(f)
        } else {
            let boxed = Box::new(f);
            Self::inline(move |outcome: IoResult<'_>| boxed(outcome))
        }
    }

    /// Puts a closure that fits into the room.
    fn inline<F: FnOnce(IoResult<'_>) + 'static>(f: F) -> Self {
        const { assert!(align_of::<ClosureSpace>() == align_of::<usize>()) };
        assert!(size_of::<F>() <= size_of::<ClosureSpace>() && align_of::<F>() <= align_of::<ClosureSpace>());
        let mut room = ClosureSpace::uninit();
        // SAFETY: size and alignment were compared, and the table is that of the same type.
        unsafe { room.as_mut_ptr().cast::<F>().write(f) };
        Self { room, table: &Of::<F>::TABLE, stays: PhantomData }
    }

    pub(super) fn call(self, outcome: IoResult<'_>) {
        // The call moves the closure out, also when it panics: nothing here drops it again.
        let mut this = ManuallyDrop::new(self);
        let call = this.table.call;
        // SAFETY: the room holds the closure that the table is for, and is not used again.
        unsafe { call(&raw mut this.room, outcome) };
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        // SAFETY: the room holds the closure that the table is for; call() never gets here.
        unsafe { (self.table.drop)(&raw mut self.room) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    fn count_of(callback: impl FnOnce(Rc<Cell<usize>>) -> Callback, call: bool) -> (usize, usize) {
        let sum = Rc::new(Cell::new(0));
        let callback = callback(sum.clone());
        assert_eq!(Rc::strong_count(&sum), 2);
        if call {
            callback.call(Ok(b"four"))
        } else {
            drop(callback)
        }
        (sum.get(), Rc::strong_count(&sum))
    }

    #[test]
    fn small_and_large_closures_are_called_once_or_dropped_once() {
        let small = |sum: Rc<Cell<usize>>| Callback::new(move |outcome| sum.set(sum.get() + outcome.unwrap().len()));
        let large = |sum: Rc<Cell<usize>>| {
            let much = [7usize; 40];
            Callback::new(move |outcome| sum.set(sum.get() + outcome.unwrap().len() + much[39]))
        };
        assert_eq!(count_of(small, true), (4, 1));
        assert_eq!(count_of(small, false), (0, 1));
        assert_eq!(count_of(large, true), (11, 1));
        assert_eq!(count_of(large, false), (0, 1));
    }

    #[test]
    fn what_needs_more_alignment_is_boxed() {
        #[repr(align(64))]
        struct Wide(u8);
        let wide = Wide(5);
        let got = Rc::new(Cell::new(0));
        let out = got.clone();
        Callback::new(move |_| {
            let wide = &wide;
            assert_eq!((wide as *const Wide).addr() % 64, 0);
            out.set(wide.0);
        })
        .call(Ok(&[]));
        assert_eq!(got.get(), 5);
    }

    #[test]
    fn a_closure_that_panics_is_dropped_once() {
        let held = Rc::new(());
        let inner = held.clone();
        let callback = Callback::new(move |_| {
            let _inner = inner;
            panic!("as asked");
        });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback.call(Ok(&[])))).is_err());
        assert_eq!(Rc::strong_count(&held), 1);
    }
}
