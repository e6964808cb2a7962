//! The state of a member with FORK above STATE or STATE_SOCK: the states of the channel and of its fork channels, one after the
//! other.
//!
//! Each has two strings, the ids of fork stack and fork channel, an int for its length, and its bytes. The ids of the channel's
//! own state are absent. An empty state is left out.

use bytes::{BufMut, Bytes, BytesMut};

use super::primitives::{Reader, Result, put_string};

/// The state of a channel or of a fork channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForkState {
    /// The fork stack's id; absent for the channel itself.
    pub stack: Option<String>,
    /// The fork channel's id; absent for the channel itself.
    pub channel: Option<String>,
    /// The state.
    pub state: Bytes,
}

/// Encodes states.
pub fn encode_fork_states(states: &[ForkState]) -> Bytes {
    let size: usize = states.iter().map(|one| 16 + one.state.len()).sum();
    let mut out = BytesMut::with_capacity(size);
    for one in states.iter().filter(|one| !one.state.is_empty()) {
        put_string(&mut out, one.stack.as_deref());
        put_string(&mut out, one.channel.as_deref());
        out.put_i32(one.state.len() as i32);
        out.put_slice(&one.state);
    }
    out.freeze()
}

/// Decodes [`encode_fork_states`]'s output. The states are slices of it.
///
/// # Errors
///
/// If the bytes are invalid.
pub fn decode_fork_states(bytes: &Bytes) -> Result<Vec<ForkState>> {
    let mut reader = Reader::new(bytes);
    let mut states = Vec::new();
    while reader.left() > 0 {
        let stack = reader.string("fork stack")?;
        let channel = reader.string("fork channel")?;
        let length = reader.length("length of a state")?.unwrap_or(0);
        let state = reader.bytes("state", length)?;
        if !state.is_empty() {
            states.push(ForkState { stack, channel, state });
        }
    }
    Ok(states)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_in_order_and_not_if_they_are_cut() {
        let state = |id: Option<&str>, state: &'static [u8]| ForkState {
            stack: id.map(str::to_owned),
            channel: id.map(|id| format!("{id}-channel")),
            state: Bytes::from_static(state),
        };
        let states = [state(None, b"main"), state(Some("s"), b"forked")];
        let bytes = encode_fork_states(&states);
        assert_eq!(&bytes[..10], [0, 0, 0, 0, 0, 4, b'm', b'a', b'i', b'n']);
        assert_eq!(decode_fork_states(&bytes).unwrap(), states);
        for end in (1..bytes.len()).filter(|&end| end != 10) {
            assert!(decode_fork_states(&bytes.slice(..end)).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn empty_states_are_left_out() {
        let empty = ForkState { stack: None, channel: None, state: Bytes::new() };
        assert!(encode_fork_states(&[empty]).is_empty());
        assert_eq!(decode_fork_states(&Bytes::new()), Ok(Vec::new()));
        assert_eq!(decode_fork_states(&Bytes::from_static(&[0, 0, 0, 0, 0, 0])), Ok(Vec::new()));
    }
}
