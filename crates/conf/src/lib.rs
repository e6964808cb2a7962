//! Configuration files: XML stacks with property substitution, read into one tree with source positions
