pub(crate) mod addresses;
pub(crate) mod ip_filter;
pub(crate) mod socket;
