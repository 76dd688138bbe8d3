//! The owner of each frame.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sluice_shm::BURST;
use sluice_shm::descriptor::{Descriptor, flags};
use sluice_shm::ring::{Producer, WildCursor};

use crate::sync::{AtomicU64, Ordering, fence};

/// Owners of a frame.
pub mod owner {
    /// No NF: free, or held by a port or a manager thread.
    pub const FREE: u16 = 0;
    /// A packet thread that has claimed it from one NF and not yet handed it over to the next.
    pub const IN_HAND: u16 = 1;
    /// NF number `n` is `FIRST_NF + n`.
    pub const FIRST_NF: u16 = 2;
}

/// The manager's record of a frame in use, packed in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// See [`owner`].
    pub owner: u16,
    /// The hop of the path at which the packet is.
    pub hop: u8,
    /// [`SAMPLED`], [`TRACED`], [`URGENT`], [`KINDS`], [`DETOURS`].
    pub flags: u8,
    /// Number of its path.
    pub path: u32,
}

/// The packet's latency is measured.
pub const SAMPLED: u8 = 1;
/// The packet's path is traced.
pub const TRACED: u8 = 2;
/// NFs are woken for this packet, whatever their threshold.
pub const URGENT: u8 = 4;
/// Any of the three: the packet takes the careful way.
pub const MARKS: u8 = SAMPLED | TRACED | URGENT;
/// What the descriptor's flags FRAGMENT and NON_IP were when the packet came in.
pub const KINDS: u8 = 0x18;
/// How often NFs have sent the packet to a service by a verdict: one is [`DETOUR`].
pub const DETOURS: u8 = 0xe0;
/// See [`DETOURS`].
pub const DETOUR: u8 = 0x20;

const KINDS_SHIFT: u32 = 2;
const _: () = assert!((flags::FRAGMENT | flags::NON_IP) << KINDS_SHIFT == KINDS && MARKS ^ KINDS ^ DETOURS == u8::MAX);

impl Held {
    /// Packs it into one word.
    #[inline(always)]
    pub fn pack(self) -> u64 {
        u64::from(self.path) | u64::from(self.owner) << 32 | u64::from(self.hop) << 48 | u64::from(self.flags) << 56
    }

    /// The descriptor's flags of its packet: FRAGMENT and NON_IP.
    #[inline(always)]
    pub fn kind(self) -> u8 {
        (self.flags & KINDS) >> KINDS_SHIFT
    }

    /// Unpacks one word.
    #[inline(always)]
    pub fn unpack(word: u64) -> Self {
        Self { path: word as u32, owner: (word >> 32) as u16, hop: (word >> 48) as u8, flags: (word >> 56) as u8 }
    }
}

/// The word of a frame that no NF has.
const NOBODYS: u64 = 0;

/// The [`KINDS`] of a descriptor's flags FRAGMENT and NON_IP.
#[inline(always)]
pub fn kind_of(flags: u8) -> u8 {
    flags << KINDS_SHIFT & KINDS
}

/// A word with the [`KINDS`] of a descriptor's flags. One that names no NF stays as it is.
#[inline(always)]
pub fn with_kind(word: u64, flags: u8) -> u64 {
    if word == NOBODYS { NOBODYS } else { word | u64::from(kind_of(flags)) << 56 }
}

/// The word of a claimed frame until the next NF gets it. It keeps the path, which is not freed
/// while a frame names it.
#[inline(always)]
pub fn in_hand(word: u64) -> u64 {
    word & !(0xffff << 32) | u64::from(owner::IN_HAND) << 32
}

/// Counts steps in which packets of one path change frames, or their frames are given away. During
/// such a step a scan of all words may miss the path's packets: see [`FrameTable::left`]. Only a
/// path that has ended needs it: no step that began before its end goes on during a scan for it.
#[derive(Debug)]
pub struct Moves(AtomicU64);

/// In [`Moves`]: one finished step. The bits below count the steps in progress.
const OVER: u64 = 1 << 32;

impl Default for Moves {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Moves {
    /// Notes the beginning of a step, which ends when the returned value is dropped.
    #[cold]
    pub fn begin(&self) -> Moving<'_> {
        // Release by the fence: a reader of a word that changed since then sees this too.
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        Moving(self)
    }

    /// Number of finished steps, if none is in progress.
    fn at_rest(&self) -> Option<u64> {
        // Acquire: a reader of a finished step sees its words.
        let now = self.0.load(Ordering::Acquire);
        now.is_multiple_of(OVER).then_some(now)
    }
}

/// A step in progress: see [`Moves::begin`].
#[derive(Debug)]
pub struct Moving<'a>(&'a Moves);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        // Release: as in `Moves::at_rest`.
        self.0.0.fetch_add(OVER - 1, Ordering::Release);
    }
}

/// The owners of all frames.
#[derive(Debug, Clone)]
pub struct FrameTable {
    words: Arc<[AtomicU64]>,
}

impl FrameTable {
    /// A table of `frames` free frames.
    pub fn new(frames: u32) -> Self {
        Self { words: (0..frames).map(|_| AtomicU64::new(NOBODYS)).collect() }
    }

    /// The word of a frame. None if there is no such frame.
    #[inline(always)]
    pub fn word(&self, frame: u32) -> Option<u64> {
        // Acquire: what was done before a hand-over, such as with credits, comes before what
        // follows.
        self.words.get(frame as usize).map(|word| word.load(Ordering::Acquire))
    }

    /// Claims a frame that an NF returned, and returns its former word. None, and no change, if the
    /// NF does not have it. Only for the thread that drains the NF: no other thread changes a word
    /// that names this NF, so no exchange is needed.
    #[inline(always)]
    pub fn claim(&self, frame: u32, owner: u16) -> Option<u64> {
        let cell = self.words.get(frame as usize)?;
        // Acquire: as in `word`.
        let word = cell.load(Ordering::Acquire);
        if Held::unpack(word).owner != owner {
            return None;
        }
        // Release: other threads may not change this word, but `left` reads it.
        cell.store(in_hand(word), Ordering::Release);
        Some(word)
    }

    /// As [`claim`](Self::claim), if the word is `word`, which names the NF. `meanwhile` is the new
    /// word: [`in_hand`], or 0 if no NF comes next.
    #[inline(always)]
    pub fn claim_same(&self, frame: u32, word: u64, meanwhile: u64) -> bool {
        let Some(cell) = self.words.get(frame as usize) else { return false };
        // Orderings: as in `claim`.
        let same = cell.load(Ordering::Acquire) == word;
        if same {
            cell.store(meanwhile, Ordering::Release);
        }
        same
    }

    /// Reclaims a frame of an NF that has gone. None if the NF does not have it. Only for the
    /// thread that drains the NF, when no thread has a ring to it any more.
    pub fn reclaim(&self, frame: u32, owner: u16) -> Option<Held> {
        let word = self.word(frame).filter(|word| Held::unpack(*word).owner == owner)?;
        // By the rules the exchange cannot fail. It is cheap here, and keeps an error elsewhere
        // from putting two packets in one frame. Acquire: as in `word`.
        let taken = self.words[frame as usize].compare_exchange(word, NOBODYS, Ordering::Acquire, Ordering::Relaxed);
        debug_assert!(taken.is_ok(), "frame {frame} of owner {owner} changed hands while it was taken back");
        taken.ok().map(Held::unpack)
    }

    /// Notes that a frame in this thread's hands has no NF.
    #[inline(always)]
    pub fn free(&self, frame: u32) {
        if let Some(word) = self.words.get(frame as usize) {
            // Release: the queue to the next thread orders this, but `left` reads it without a
            // queue.
            word.store(NOBODYS, Ordering::Release);
        }
    }

    /// Gives away up to [`BURST`] frames of this thread. It clears their words, calls `give`, which
    /// may free them anywhere at once and returns how many of the first it took, and restores the
    /// words of the rest. For a path that has ended a [`Moves`] step must be in progress.
    pub fn give_away(&self, frames: impl Iterator<Item = u32> + Clone, give: impl FnOnce() -> usize) -> usize {
        let mut words = [NOBODYS; BURST];
        for (word, frame) in words.iter_mut().zip(frames.clone()) {
            *word = self.word(frame).unwrap_or(NOBODYS);
            self.free(frame);
        }
        let taken = give();
        for (frame, word) in frames.zip(words).skip(taken) {
            self.own(frame, word);
        }
        taken
    }

    /// Enqueues the first frames in this thread's hands that fit to an NF; returns how many.
    /// `words` gives the word of each place in the burst. `prepare` gets those that will go: later
    /// the NF may have returned any, so this thread may not change their contents.
    ///
    /// # Errors
    /// [`WildCursor`] if the NF has forged its end of the ring. No frame was handed over.
    #[inline(always)]
    pub fn hand_over(
        &self,
        to: &mut Producer,
        burst: &[Descriptor],
        words: impl Fn(usize) -> u64,
        prepare: impl FnOnce(&[Descriptor]),
    ) -> Result<usize, WildCursor> {
        let n = to.room_for(burst.len())?;
        if n == 0 {
            return Ok(0);
        }
        let burst = &burst[..n];
        prepare(burst);
        for (i, descriptor) in burst.iter().enumerate() {
            debug_assert!(
                self.word(descriptor.frame).is_some_and(|word| Held::unpack(word).owner < owner::FIRST_NF),
                "frame {} is not this thread's",
                descriptor.frame
            );
            self.own(descriptor.frame, words(i));
        }
        let written = to.enqueue(burst);
        debug_assert_eq!(written, Ok(n), "the room was reserved");
        written
    }

    #[inline(always)]
    pub(crate) fn own(&self, frame: u32, word: u64) {
        if let Some(cell) = self.words.get(frame as usize) {
            // Release: see `word`.
            cell.store(word, Ordering::Release);
        }
    }

    /// Of `paths`, which have ended and admit no more packets, those that no packet is on: no frame
    /// names them, and no step of theirs occurred during the scan. Of the others it is not known;
    /// ask again. Steps of other paths do not matter, so it succeeds however busy they are.
    pub fn left<'a>(&self, paths: impl IntoIterator<Item = (u32, &'a Moves)>) -> HashSet<u32> {
        let at_rest = |(number, moves): (u32, &'a Moves)| Some((number, (moves, moves.at_rest()?)));
        let mut left: HashMap<u32, (&Moves, u64)> = paths.into_iter().filter_map(at_rest).collect();
        let mut last = None;
        for word in &*self.words {
            // Relaxed: the fence below orders all of them. A packet stays in its word, moves in a
            // step of its path, or is gone for ever.
            let word = word.load(Ordering::Relaxed);
            let path = Held::unpack(word).path;
            if word != NOBODYS && last != Some(path) {
                left.remove(&path);
                last = Some(path);
            }
        }
        // Acquire: the writer of each word read here saw the steps that began before it.
        fence(Ordering::Acquire);
        left.retain(|_, (moves, before)| moves.0.load(Ordering::Relaxed) == *before);
        left.into_keys().collect()
    }

    /// Number of frames that an NF or a packet thread between two NFs has.
    pub fn in_use(&self) -> usize {
        // Relaxed: a number that may change at any time.
        self.words.iter().filter(|word| word.load(Ordering::Relaxed) != NOBODYS).count()
    }

    /// As [`in_use`](Self::in_use), of `frames` frames from `first` on.
    pub fn in_use_of(&self, first: u32, frames: u32) -> usize {
        let words = self.words.get(first as usize..first as usize + frames as usize).unwrap_or_default();
        // Relaxed: as in `in_use`.
        words.iter().filter(|word| word.load(Ordering::Relaxed) != NOBODYS).count()
    }

    /// Moves a packet between two frames in this thread's hands; `from` becomes free. For a path
    /// that has ended a [`Moves`] step must be in progress, as a scan may find the packet in
    /// neither word.
    #[inline(always)]
    pub fn carry(&self, from: u32, to: u32) {
        if let (Some(from), Some(to)) = (self.words.get(from as usize), self.words.get(to as usize)) {
            // Relaxed: both words are this thread's. Release: as in `free`.
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
            from.store(NOBODYS, Ordering::Release);
        }
    }

    /// Number of frames of each NF, by its number.
    pub fn held(&self) -> HashMap<u16, u64> {
        let mut held = HashMap::new();
        for word in &*self.words {
            // Relaxed: as in `in_use`.
            let owner = Held::unpack(word.load(Ordering::Relaxed)).owner;
            if owner >= owner::FIRST_NF {
                *held.entry(owner - owner::FIRST_NF).or_default() += 1;
            }
        }
        held
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.words.len() as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use sluice_shm::ring;

    use super::*;

    const FIRST: u16 = owner::FIRST_NF;

    fn word(owner: u16, hop: u8) -> u64 {
        Held { owner, hop, flags: 0, path: 7 }.pack()
    }

    fn burst<const N: usize>(frames: [u32; N]) -> [Descriptor; N] {
        frames.map(|frame| Descriptor { frame, ..Default::default() })
    }

    #[test]
    fn words_keep_what_is_held() {
        let held = Held { owner: 0xabcd, hop: 7, flags: SAMPLED | TRACED, path: 0xdead_beef };
        assert_eq!(Held::unpack(held.pack()), held);
        for kind in [0, flags::FRAGMENT, flags::NON_IP] {
            let word = with_kind(held.pack(), kind);
            assert_eq!((Held::unpack(word).kind(), word & held.pack(), with_kind(0, kind)), (kind, held.pack(), 0));
        }
    }

    #[test]
    fn only_what_has_room_changes_hands() {
        let table = FrameTable::new(8);
        let (mut to, mut nf) = ring::private(4);
        let mut prepared = 0;
        let n = table.hand_over(&mut to, &burst([0, 1, 2, 3, 4, 5]), |i| word(FIRST, i as u8), |burst| prepared = burst.len());
        assert_eq!((n, prepared), (Ok(4), 4));
        assert_eq!(table.held(), HashMap::from([(0, 4)]));
        assert_eq!((table.word(3), table.word(4)), (Some(word(FIRST, 3)), Some(0)), "what has no room stays where it was");
        let full = table.hand_over(&mut to, &burst([4]), |_| word(FIRST, 0), |_| panic!("nothing goes"));
        assert_eq!((full, table.in_use()), (Ok(0), 4));
        let mut out = [Descriptor::default(); 4];
        assert_eq!(nf.dequeue(&mut out), Ok(4));
        assert_eq!(out, burst([0, 1, 2, 3]));
    }

    #[test]
    fn a_frame_is_claimed_once_and_from_its_owner() {
        let table = FrameTable::new(4);
        let (mut to, _nf) = ring::private(4);
        table.hand_over(&mut to, &burst([1, 2]), |_| word(FIRST, 0), |_| {}).unwrap();
        assert_eq!(table.claim(1, FIRST + 1), None, "another's");
        assert_eq!(table.claim(9, FIRST), None, "no frame");
        assert_eq!(table.claim(1, FIRST), Some(word(FIRST, 0)));
        assert_eq!(table.claim(1, FIRST), None, "a second time");
        let first = word(FIRST, 0);
        assert!(!table.claim_same(2, word(FIRST, 1), 0));
        assert!(table.claim_same(2, first, in_hand(first)) && !table.claim_same(2, first, 0));
        table.own(2, word(FIRST, 0));
        assert_eq!(table.reclaim(2, FIRST + 1), None);
        assert_eq!(table.reclaim(2, FIRST), Some(Held { owner: FIRST, hop: 0, flags: 0, path: 7 }));
        assert_eq!((table.reclaim(2, FIRST), table.in_use()), (None, 1));
        let moves = Moves::default();
        assert_eq!((table.left([(7, &moves)]).len(), table.held()), (0, HashMap::new()), "one is between two NFs");
        table.free(1);
        assert_eq!((table.left([(7, &moves)]), table.in_use()), (HashSet::from([7]), 0));
    }

    #[test]
    fn what_is_given_away_in_vain_keeps_its_word() {
        let table = FrameTable::new(4);
        let (mut to, _nf) = ring::private(4);
        table.hand_over(&mut to, &burst([1, 2, 3]), |_| word(FIRST, 0), |_| {}).unwrap();
        let (moves, others) = (Moves::default(), Moves::default());
        let left = || table.left([(7, &moves), (8, &others)]);
        let moving = moves.begin();
        let taken = table.give_away([1, 2, 3].into_iter(), || {
            assert_eq!((table.in_use(), left()), (0, HashSet::from([8])), "nobody may conclude that the path is empty");
            1
        });
        drop(moving);
        assert_eq!((taken, table.in_use()), (1, 2));
        assert_eq!((table.word(1), table.word(2)), (Some(0), Some(word(FIRST, 0))));
        assert_eq!(left(), HashSet::from([8]));
        [2, 3].into_iter().for_each(|frame| table.free(frame));
        assert_eq!(left(), HashSet::from([7, 8]));
    }

    #[test]
    fn several_threads_may_move_packets_of_a_path() {
        let table = FrameTable::new(1);
        let moves = Moves::default();
        let is_left = || !table.left([(7, &moves)]).is_empty();
        assert!(is_left());
        let (one, other) = (moves.begin(), moves.begin());
        assert!(!is_left());
        drop(one);
        assert!(!is_left());
        drop(other);
        assert!(is_left());
    }
}
