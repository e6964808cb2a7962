use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one: many systems begin with 1,024, which a server needs for its clients alone.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?current, ?maximum, "the limit of descriptors cannot be raised");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_of_descriptors_is_raised_to_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let lower = Rlimit { current: before.current.map(|limit| limit / 2), ..before };
        setrlimit(Resource::Nofile, lower).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
