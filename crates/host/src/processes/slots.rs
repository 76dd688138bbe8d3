//! The table of a controller's targets.

use super::{Failed, Slot};

#[derive(Debug)]
pub(super) struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    /// Puts a value into the first free slot.
    pub(super) fn put(&mut self, value: T) -> Slot {
        let index = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[index] = Some(value);
        Slot(index as u32)
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        self.0.get(slot.index())?.as_ref()
    }

    #[inline]
    pub(super) fn of(&mut self, slot: Slot) -> Result<&mut T, Failed> {
        self.0.get_mut(slot.index()).and_then(Option::as_mut).ok_or(Failed::NoSuchSlot(slot))
    }

    pub(super) fn take(&mut self, slot: Slot) -> Result<T, Failed> {
        self.0.get_mut(slot.index()).and_then(Option::take).ok_or(Failed::NoSuchSlot(slot))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    pub(super) fn used(&self) -> Vec<Slot> {
        let used = |(i, value): (usize, &Option<T>)| value.as_ref().map(|_| Slot(i as u32));
        self.0.iter().enumerate().filter_map(used).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again() {
        let mut slots = Slots::default();
        let (a, b) = (slots.put('a'), slots.put('b'));
        assert_eq!((a.index(), b.index(), slots.used().len()), (0, 1, 2));
        assert_eq!(slots.take(a), Ok('a'));
        assert_eq!(slots.take(a), Err(Failed::NoSuchSlot(a)));
        assert_eq!(slots.used(), [b]);
        assert_eq!(slots.put('c'), a);
        assert_eq!(slots.of(a), Ok(&mut 'c'));
        assert_eq!(slots.get(Slot(7)), None);
    }
}
