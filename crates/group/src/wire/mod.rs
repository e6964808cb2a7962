//! The JGroups 5.5 encoding.
//!
//! Every length is checked before memory is allocated. Invalid bytes give a [`WireError`].

mod addresses;
mod counters;
mod exceptions;
mod fd_sock;
mod fork_state;
mod frequent_headers;
mod gossip;
mod headers;
mod key_block;
mod key_response;
mod messages;
mod objects;
mod packets;
mod primitives;
mod rare_headers;
mod rpc;
mod sites;
mod uperf;
mod views;

#[cfg(test)]
mod vectors;

pub use addresses::{decode_address_prefix, encode_address};
pub use counters::{
    CounterMessage, CounterOperation, CounterOwner, CounterRow, RECONCILED_COUNTERS_MAX, decode_counter,
    encode_counter,
};
pub use exceptions::{decode_exception, encode_exception};
pub use fd_sock::{SOCKET_ADDRESSES_MAX, decode_socket_addresses, encode_socket_addresses};
pub use fork_state::{ForkState, decode_fork_states, encode_fork_states};
pub use gossip::{GossipData, GossipKind, decode_gossip, encode_gossip, encode_gossip_message};
pub use headers::magic_of_header;
pub use key_block::{
    KEY_BLOCK_MEMBERS_MAX, MemberKeys, PUBLIC_KEY_BYTES_MAX, SHARED_KEY_BYTES_MAX, decode_key_block,
    encode_key_block,
};
pub use key_response::{
    KEY_REQUEST, KEY_RESPONSE_BYTES_MAX, KeyResponseError, decode_key_response, encode_key_response,
};
pub use messages::{Bulk, decode_body, decode_typed, encode_body, encode_typed, message_size, message_type};
pub use objects::{decode_primitive, encode_primitive, object_length};
pub use packets::{
    ListStart, Packet, append_to_list, begin_list, decode_packet, decode_setup, encode_setup, encode_tp,
    finish_list, peek_version, write_single,
};
pub use primitives::{NESTING_MAX, Reader, WireError, compressed_long_length};
pub use rpc::{Method, MethodCall, decode_method_call, encode_method_call};
pub use sites::{SITE_LIST_BYTES_MAX, SITES_MAX};
pub use uperf::{
    UperfCall, UperfResults, UperfTimes, decode_uperf_call, decode_uperf_config, encode_uperf_call,
    encode_uperf_config,
};
pub use views::{
    JoinRsp, PING_DATA_MAX, SEQNO_LIST_MAX, ViewForm, decode_address_list, decode_join_rsp, decode_ping_data,
    decode_view_and_digest, decode_view_id_option, decode_view_option, encode_address_list, encode_join_rsp,
    encode_ping_data, encode_view_and_digest, encode_view_id_option, encode_view_option,
};
