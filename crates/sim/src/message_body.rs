//! The bodies of messages, and their traces in packets.

/// The bytes after which the body of a message repeats itself.
pub(crate) const PERIOD: usize = 256;

/// From each offset in the first period on there is a whole one.
const BODY: [u8; 2 * PERIOD] = {
    let mut body = [0; 2 * PERIOD];
    let mut at = 0;
    while at < body.len() {
        body[at] = (at as u8).wrapping_mul(31);
        at += 1;
    }
    body
};

/// Each byte depends on its offset, and on the number.
pub(crate) fn period(number: u64) -> &'static [u8] {
    &BODY[usize::from(number as u8)..][..PERIOD]
}

/// Returns whether bytes have a part of a body as [`period`] makes it. Other bytes look so once in 2^56 places.
pub(crate) fn show_body(bytes: &[u8]) -> bool {
    let step = BODY[1];
    bytes.windows(8).any(|window| window.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_shows_a_body_wherever_it_begins() {
        for number in [1, 255] {
            let packet = [&[9; 30][..], &period(number)[..40]].concat();
            assert!(show_body(&packet));
        }
        let other: Vec<u8> = (0..5_000u32).map(|at| (at * at / 3) as u8).collect();
        assert!(!show_body(&other));
    }
}
