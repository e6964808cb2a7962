use consort_channel::Channel;
use consort_conf::{Variables, parse_stack};

use crate::manager::{CacheManager, ManagerBuilder};

/// The first member waits briefly for others, and a silent member is suspected soon.
const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><MERGE3/>\
    <FD_ALL3 timeout=\"2000\" interval=\"500\"/><VERIFY_SUSPECT2 timeout=\"500\"/><NAKACK2/><UNICAST3/><STABLE/>\
    <GMS join_timeout=\"100\"/><UFC/><MFC/><FRAG4/></config>";

impl CacheManager {
    /// Creates a manager whose cluster is within this process, without sockets and without a file, for example for tests. All
    /// managers that connect to a cluster of one name are its members.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use consort_cache::CacheManager;
    ///
    /// let first = CacheManager::in_process().connect("fruit").await?;
    /// let second = CacheManager::in_process().connect("fruit").await?;
    /// first.cache::<String, u32>("stock").await?.put("apples", &3).await?;
    /// assert_eq!(second.cache::<String, u32>("stock").await?.get("apples").await?, Some(3));
    /// # second.close().await?;
    /// # first.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Never: the stack is a constant.
    pub fn in_process() -> ManagerBuilder {
        let stack = parse_stack("in-process", STACK, &Variables::new()).expect("the stack is a constant");
        Self::from_channel(Channel::from_config(stack.config))
    }
}
