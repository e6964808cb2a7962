//! The asynchronous channel: connect, send, receive, views, state and remote procedure calls
