pub(crate) struct Memory {
    bytes: Vec<u8>,
    at: usize,
    read_size: usize,
}

impl Memory {
    pub(crate) fn new(size: usize, read_size: usize) -> Self {
        Self { bytes: vec![0; size.max(read_size)], at: 0, read_size }
    }

    pub(crate) fn place(&mut self) -> &mut [u8] {
        if self.at + self.read_size > self.bytes.len() {
            self.at = 0;
        }
        &mut self.bytes[self.at..self.at + self.read_size]
    }

    pub(crate) fn filled(&mut self, count: usize) {
        self.at += count;
    }
}

#[cfg(test)]
mod tests {
    use super::Memory;

    #[test]
    fn reads_go_round() {
        let mut memory = Memory::new(10, 4);
        for start in [0_u8, 4, 0] {
            let place = memory.place();
            assert_eq!(place.len(), 4);
            place.fill(start + 1);
            memory.filled(4);
        }
        assert_eq!(memory.bytes, [1, 1, 1, 1, 5, 5, 5, 5, 0, 0]);
    }

    #[test]
    fn without_memory_every_read_goes_to_the_same_place() {
        let mut memory = Memory::new(0, 4);
        memory.place().fill(1);
        memory.filled(3);
        assert_eq!(memory.place(), [1, 1, 1, 1]);
    }
}
