//! Run-length encoding of rows: the reduced result of a segment.

use bytes::Bytes;

/// The offset of the last run.
const LAST: usize = 4;
/// The count, and the length of the row.
const HEAD: usize = 8;

pub(crate) fn push(made: &mut Vec<u8>, row: &[u8]) {
    if made.is_empty() {
        made.extend([0; LAST]);
    } else if let Some((at, count, last)) = last(made)
        && last == row
        && let Some(more) = count.checked_add(1)
    {
        made[at..at + 4].copy_from_slice(&more.to_be_bytes());
        return;
    }
    // Offsets and lengths beyond 32 bits cannot occur for one segment.
    let (Ok(at), Ok(length)) = (u32::try_from(made.len()), u32::try_from(row.len())) else { return };
    made[..LAST].copy_from_slice(&at.to_be_bytes());
    made.extend(1_u32.to_be_bytes());
    made.extend(length.to_be_bytes());
    made.extend(row);
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
}

fn last(made: &[u8]) -> Option<(usize, u32, &[u8])> {
    let at = word(made, 0)? as usize;
    Some((at, word(made, at)?, made.get(at + HEAD..)?))
}

/// With their counts; `None` if the encoding is invalid.
pub(crate) fn runs(made: &Bytes) -> Option<Vec<(u32, Bytes)>> {
    let (mut runs, mut at) = (Vec::new(), LAST);
    word(made, 0)?;
    while at < made.len() {
        let (count, length) = (word(made, at)?, word(made, at + 4)? as usize);
        let from = at + HEAD;
        at = from.checked_add(length).filter(|end| *end <= made.len())?;
        runs.push((count, made.slice(from..at)));
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_come_back_as_often_as_they_were_given(rows in prop::collection::vec("[ab]{0,2}", 1..40)) {
            let mut made = Vec::new();
            rows.iter().for_each(|row| push(&mut made, row.as_bytes()));
            let runs = runs(&made.into()).unwrap();
            let all = runs.iter().flat_map(|(count, row)| std::iter::repeat_n(row.clone(), *count as usize));
            prop_assert!(all.eq(rows.iter().map(|row| Bytes::copy_from_slice(row.as_bytes()))));
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 != pair[1].1));
        }

        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = runs(&bytes.into());
        }
    }
}
