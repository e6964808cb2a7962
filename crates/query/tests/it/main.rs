//! Queries from their text to their answer, over entities in memory.

mod answers;
mod limits;
mod refusals;
mod shop;
mod texts;
