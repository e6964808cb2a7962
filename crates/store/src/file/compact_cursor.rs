use super::scan::Scan;

#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) number: u32,
    pub(crate) start: u32,
    pub(crate) scan: Scan,
    pub(crate) pass: Pass,
    pub(crate) skips_flaws: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Check,
    Copy,
}
