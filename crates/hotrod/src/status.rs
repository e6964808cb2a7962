//! The status of a response (facts section 1.5).

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $name:ident = $byte:literal,)+) => {
        /// The status of a response.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Status {
            $($(#[doc = $doc])+ $name = $byte,)+
        }

        impl Status {
            /// All statuses.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// Returns the status.
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
    /// No such key or object.
    NotFound = 0x02,
    /// Done; the previous value follows.
    SuccessWithPrevious = 0x03,
    /// The condition did not hold; the current value follows, except for counters.
    NotExecutedWithPrevious = 0x04,
    /// No such iteration.
    InvalidIteration = 0x05,
    /// [`Self::Success`] of Java objects, to 2.4 to 2.8.
    SuccessObject = 0x06,
    /// [`Self::SuccessWithPrevious`] of Java objects, to 2.4 to 2.8.
    SuccessWithPreviousObject = 0x07,
    /// [`Self::NotExecutedWithPrevious`] of Java objects, to 2.4 to 2.8.
    NotExecutedWithPreviousObject = 0x08,
    /// Not a request.
    InvalidMagic = 0x81,
    /// Unknown operation.
    UnknownOpcode = 0x82,
    /// Unknown version.
    UnknownVersion = 0x83,
    /// An invalid request, or an unknown cache.
    ParseError = 0x84,
    /// The operation failed.
    ServerError = 0x85,
    /// The operation timed out.
    TimedOut = 0x86,
    /// A suspected member; another server may succeed.
    NodeSuspected = 0x87,
    /// Server or cache is not running; another server may succeed.
    IllegalLifecycle = 0x88,
}

impl Status {
    /// Returns the byte.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Returns whether it is an error.
    pub const fn is_error(self) -> bool {
        self.byte() >= 0x80
    }

    /// Returns whether a previous value follows, in operations that return it.
    pub const fn has_previous(self) -> bool {
        matches!(
            self,
            Self::SuccessWithPrevious
                | Self::NotExecutedWithPrevious
                | Self::SuccessWithPreviousObject
                | Self::NotExecutedWithPreviousObject
        )
    }

    /// Returns whether the operation was executed.
    pub const fn is_success(self) -> bool {
        matches!(
            self,
            Self::Success | Self::SuccessWithPrevious | Self::SuccessObject | Self::SuccessWithPreviousObject
        )
    }
}
