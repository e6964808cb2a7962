//! A run of a LIKE pattern: characters between two `%`, some of which match any character.
//!
//! Literal runs are searched by `memchr::memmem` in linear time, runs with `_` bit-parallel: one bit per character of the run
//! says whether the text so far ends with the run up to there. A character of the text costs one 64-bit word per 64 characters of
//! the run.

use memchr::memmem::Finder;

use crate::limits::PATTERN_MAX;
use crate::work::{Exceeded, Work};

const WORDS: usize = PATTERN_MAX.div_ceil(64);

/// One bit per character of a run.
type Bits = [u64; WORDS];

/// `None` matches any character.
#[derive(Clone, Default, Debug)]
pub(crate) struct Run {
    pieces: Vec<Option<char>>,
    search: Search,
}

#[derive(Clone, Default, Debug)]
enum Search {
    #[default]
    Empty,
    Literal(Box<Finder<'static>>),
    Masks(Box<Masks>),
}

/// Positions that a character matches.
#[derive(Clone, Debug)]
struct Masks {
    /// Sorted.
    of: Vec<(char, Bits)>,
    /// For characters not in the run.
    other: Bits,
    /// ASCII characters: the index in `of`, or its length.
    ascii: [u16; 128],
}

impl Run {
    pub(crate) fn new(pieces: Vec<Option<char>>) -> Self {
        let search = if pieces.is_empty() {
            Search::Empty
        } else if let Some(text) = pieces.iter().copied().collect::<Option<String>>() {
            Search::Literal(Box::new(Finder::new(&text).into_owned()))
        } else {
            Search::Masks(Box::new(Masks::new(&pieces)))
        };
        Self { pieces, search }
    }

    pub(crate) fn at_start<'t>(&self, text: &'t str) -> Option<&'t str> {
        let mut rest = text.chars();
        let is_it = self.pieces.iter().all(|piece| fits(*piece, rest.next()));
        is_it.then_some(rest.as_str())
    }

    pub(crate) fn at_end<'t>(&self, text: &'t str) -> Option<&'t str> {
        let mut rest = text.chars();
        let is_it = self.pieces.iter().rev().all(|piece| fits(*piece, rest.next_back()));
        is_it.then_some(rest.as_str())
    }

    pub(crate) fn find<'t>(&self, text: &'t str, work: &mut Work) -> Result<Option<&'t str>, Exceeded> {
        match &self.search {
            Search::Empty => Ok(Some(text)),
            Search::Literal(finder) => {
                let end = finder.find(text.as_bytes()).map(|at| at + finder.needle().len());
                work.spend_bytes(end.unwrap_or(text.len()))?;
                Ok(end.and_then(|end| text.get(end..)))
            }
            Search::Masks(masks) => masks.find(text, self.pieces.len(), work),
        }
    }
}

fn fits(piece: Option<char>, one: Option<char>) -> bool {
    one.is_some() && (piece.is_none() || piece == one)
}

impl Masks {
    fn new(pieces: &[Option<char>]) -> Self {
        let mut other = Bits::default();
        let mut letters: Vec<char> = pieces.iter().copied().flatten().collect();
        letters.sort_unstable();
        letters.dedup();
        for (nth, piece) in pieces.iter().enumerate() {
            other[nth / 64] |= u64::from(piece.is_none()) << (nth % 64);
        }
        let of = |letter: char| {
            let mut bits = other;
            for (nth, piece) in pieces.iter().enumerate() {
                bits[nth / 64] |= u64::from(*piece == Some(letter)) << (nth % 64);
            }
            (letter, bits)
        };
        let mut ascii = [u16::MAX; 128];
        for (at, letter) in letters.iter().enumerate().filter(|(_, letter)| letter.is_ascii()) {
            ascii[*letter as usize] = at as u16;
        }
        Self { of: letters.into_iter().map(of).collect(), other, ascii }
    }

    fn of(&self, one: char) -> &Bits {
        let at = match self.ascii.get(one as usize) {
            Some(at) => Some(usize::from(*at)),
            None => self.of.binary_search_by_key(&one, |(letter, _)| *letter).ok(),
        };
        at.and_then(|at| self.of.get(at)).map_or(&self.other, |(_, bits)| bits)
    }

    fn find<'t>(&self, text: &'t str, length: usize, work: &mut Work) -> Result<Option<&'t str>, Exceeded> {
        let words = length.div_ceil(64);
        let (last, at_last) = ((length - 1) / 64, 1_u64 << ((length - 1) % 64));
        // One more than allowed, so that the excess is an error at the end.
        let looks = usize::try_from(work.left()).unwrap_or(usize::MAX) / words + 1;
        let (mut ends, mut rest, mut looked) = (Bits::default(), text.chars(), 0);
        while looked < looks
            && let Some(one) = rest.next()
        {
            looked += 1;
            let (bits, mut carried) = (self.of(one), 1);
            for nth in 0..words {
                let shifted = ends[nth] << 1 | carried;
                carried = ends[nth] >> 63;
                ends[nth] = shifted & bits[nth];
            }
            if ends[last] & at_last != 0 {
                work.spend((looked * words) as u64)?;
                return Ok(Some(rest.as_str()));
            }
        }
        work.spend((looked * words) as u64)?;
        Ok(None)
    }
}
