//! Queries from text to result, over entities in memory.

mod answers;
mod limits;
mod refusals;
mod shop;
mod texts;
