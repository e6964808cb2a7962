//! Whole clusters in virtual time from one seed, with faults and checkers
