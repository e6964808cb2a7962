//! UDP: a socket for unicasts and sending, one for the group.

mod batch;
mod buffers;
mod edge;
#[cfg(target_os = "linux")]
mod mmsg;
mod own_filter;
mod receivers;
mod socket;

pub(crate) use edge::BoundUdp;
pub(crate) use socket::{MulticastOptions, group_socket, interface_index, unicast_socket};
