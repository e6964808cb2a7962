/// Bugs that tests inject into the protocol, to prove that the checkers find them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    NothingLocked,
    AbsentNotLocked,
    LocksNotChecked,
    ReadsNotValidated,
    VersionsNotChecked,
    WrittenBeforeDecision,
}
