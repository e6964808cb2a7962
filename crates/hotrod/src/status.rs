//! How an operation ended (facts section 1.5).

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $name:ident = $byte:literal,)+) => {
        /// The status of a response.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Status {
            $($(#[doc = $doc])+ $name = $byte,)+
        }

        impl Status {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name, for logs and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// The status with this byte.
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// Done.
    Success = 0x00,
    /// The condition did not hold.
    NotExecuted = 0x01,
    /// There is no such key, or no such thing.
    NotFound = 0x02,
    /// Done, and what was there before follows.
    SuccessWithPrevious = 0x03,
    /// The condition did not hold, and what is there follows. A counter that would pass its bound, without anything.
    NotExecutedWithPrevious = 0x04,
    /// No such iteration.
    InvalidIteration = 0x05,
    /// [`Self::Success`] of a cache of Java objects, to 2.4 to 2.8.
    SuccessObject = 0x06,
    /// [`Self::SuccessWithPrevious`] of a cache of Java objects, to 2.4 to 2.8.
    SuccessWithPreviousObject = 0x07,
    /// [`Self::NotExecutedWithPrevious`] of a cache of Java objects, to 2.4 to 2.8.
    NotExecutedWithPreviousObject = 0x08,
    /// Not a request.
    InvalidMagic = 0x81,
    /// No such operation.
    UnknownOpcode = 0x82,
    /// No such version.
    UnknownVersion = 0x83,
    /// A request that cannot be read, or to a cache that is not there.
    ParseError = 0x84,
    /// It went wrong on the server.
    ServerError = 0x85,
    /// It took too long on the server.
    TimedOut = 0x86,
    /// A member that was needed is suspected: another server may do better.
    NodeSuspected = 0x87,
    /// The server or the cache is not running, or no more: another server may do better.
    IllegalLifecycle = 0x88,
}

impl Status {
    /// Its byte.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Whether the response is an error's.
    pub const fn is_error(self) -> bool {
        self.byte() >= 0x80
    }

    /// Whether what was there before follows, in operations that give it.
    pub const fn has_previous(self) -> bool {
        matches!(
            self,
            Self::SuccessWithPrevious
                | Self::NotExecutedWithPrevious
                | Self::SuccessWithPreviousObject
                | Self::NotExecutedWithPreviousObject
        )
    }

    /// Whether it was done.
    pub const fn is_success(self) -> bool {
        matches!(
            self,
            Self::Success | Self::SuccessWithPrevious | Self::SuccessObject | Self::SuccessWithPreviousObject
        )
    }
}
