//! The layers, one file each.
