//! Reads and writes numbers in network order. A read past the end is an error, not a panic.

/// The bytes ended too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Short> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Short)?;
        self.0 = tail;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Short)?;
        self.0 = tail;
        Ok(*head)
    }

    pub fn skip(&mut self, n: usize) -> Result<(), Short> {
        self.bytes(n).map(drop)
    }

    /// A reader of the next `n` bytes.
    pub fn part(&mut self, n: usize) -> Result<Self, Short> {
        self.bytes(n).map(Reader)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn u8(&mut self) -> Result<u8, Short> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, Short> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A number of up to 16 bytes.
    pub fn wide(&mut self, bytes: usize) -> Result<u128, Short> {
        Ok(self.bytes(bytes)?.iter().fold(0, |sum, byte| sum << 8 | u128::from(*byte)))
    }

    /// A text of `n` bytes, terminated by a zero.
    pub fn text(&mut self, n: usize) -> Result<String, Short> {
        let bytes = self.bytes(n)?;
        // The last byte is ignored: an encoded text has its zero there.
        let bytes = &bytes[..n.saturating_sub(1)];
        let bytes = &bytes[..bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len())];
        // An invalid byte becomes one ASCII byte, so that the encoded text has the same length.
        let plain = || bytes.iter().map(|b| if b.is_ascii() { char::from(*b) } else { '?' }).collect();
        Ok(std::str::from_utf8(bytes).map_or_else(|_| plain(), str::to_string))
    }
}

pub(crate) trait Put {
    fn u8(&mut self, n: u8);
    fn u16(&mut self, n: u16);
    fn u32(&mut self, n: u32);
    fn u64(&mut self, n: u64);
    fn zeros(&mut self, n: usize);
    /// Writes the low `bytes` bytes of a number.
    fn wide(&mut self, n: u128, bytes: usize);
    /// Writes a text into `n` bytes, cut so that it ends with a zero.
    fn text(&mut self, text: &str, n: usize);
    /// Writes the number of bytes since `from` into the two bytes at `at`.
    fn length_at(&mut self, at: usize, from: usize);
}

impl Put for Vec<u8> {
    fn u8(&mut self, n: u8) {
        self.push(n);
    }

    fn u16(&mut self, n: u16) {
        self.extend_from_slice(&n.to_be_bytes());
    }

    fn u32(&mut self, n: u32) {
        self.extend_from_slice(&n.to_be_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.extend_from_slice(&n.to_be_bytes());
    }

    fn zeros(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }

    fn wide(&mut self, n: u128, bytes: usize) {
        self.extend_from_slice(&n.to_be_bytes()[16 - bytes.min(16)..]);
    }

    fn text(&mut self, text: &str, n: usize) {
        let mut end = text.len().min(n.saturating_sub(1));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.extend_from_slice(&text.as_bytes()[..end]);
        self.zeros(n - end);
    }

    fn length_at(&mut self, at: usize, from: usize) {
        let length = (self.len() - from).min(usize::from(u16::MAX)) as u16;
        self[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
}
