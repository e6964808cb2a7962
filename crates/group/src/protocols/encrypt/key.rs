//! Unpredictable bytes.

/// A source of bytes that no peer can predict, such as the operating system. The stack's [`crate::Rng`] is
/// predictable.
pub trait RandomBytes: Send {
    /// Fills a buffer.
    ///
    /// # Errors
    ///
    /// If there are none; then nothing is sent.
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String>;
}
