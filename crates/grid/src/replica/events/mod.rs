pub(crate) mod event_delivery;
pub(crate) mod listener;
pub(crate) mod listener_table;
pub(crate) mod listeners;
