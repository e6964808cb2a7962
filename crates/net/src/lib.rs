//! The edges of the stack: TCP and UDP sockets, TLS, interface selection and the driver
