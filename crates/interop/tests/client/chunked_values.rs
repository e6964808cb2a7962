//! Multimaps and chunked values, in the list of our client's checks.

use consort_client::{Client, ClientError, Multimap, PIECE_BYTES};

use crate::feature_matrix::is_from;

/// In a cache of their own, as Infinispan wants it. From 4.0 on also with duplicates.
pub(crate) async fn multimaps(client: &Client, settings: &str, version: Option<&str>) {
    const NAME: &str = "list-multimap";
    client.administration().create(NAME, settings).await.unwrap();
    sets(&client.multimap(NAME)).await;
    duplicates(&client.multimap::<String, u32>(NAME).with_duplicates(), version).await;
    client.administration().remove(NAME).await.unwrap();
}

async fn sets(map: &Multimap<String, u32>) {
    assert!(map.get("a").await.unwrap().is_empty());
    assert!(map.get_with_metadata("a").await.unwrap().is_none());
    assert!(!map.remove("a").await.unwrap() && !map.remove_entry("a", &1).await.unwrap());
    for value in [1, 2, 1] {
        map.put("a", &value).await.unwrap();
    }
    map.put("b", &3).await.unwrap();
    let mut values = map.get("a").await.unwrap();
    values.sort_unstable();
    assert_eq!(values, [1, 2]);
    assert_eq!(map.get_with_metadata("a").await.unwrap().unwrap().value.len(), 2);
    assert_eq!(map.size().await.unwrap(), 3);
    assert!(map.contains_key("a").await.unwrap() && !map.contains_key("c").await.unwrap());
    assert!(map.contains_entry("a", &2).await.unwrap() && !map.contains_entry("b", &2).await.unwrap());
    assert!(map.contains_value(&3).await.unwrap() && !map.contains_value(&4).await.unwrap());
    assert!(map.remove_entry("a", &1).await.unwrap() && !map.remove_entry("a", &1).await.unwrap());
    assert!(map.remove_entry("a", &2).await.unwrap() && !map.contains_key("a").await.unwrap());
    assert!(map.remove("b").await.unwrap());
}

async fn duplicates(often: &Multimap<String, u32>, version: Option<&str>) {
    if !is_from(version, "4.0") {
        let error = often.put("a", &1).await.unwrap_err();
        assert!(matches!(error, ClientError::Unsupported { .. }), "{error}");
        return;
    }
    for value in [1, 2, 1, 1] {
        often.put("a", &value).await.unwrap();
    }
    let mut values = often.get("a").await.unwrap();
    values.sort_unstable();
    assert_eq!(values, [1, 1, 1, 2]);
    assert_eq!(often.size().await.unwrap(), 4);
    assert!(often.remove_entry("a", &1).await.unwrap());
    assert_eq!(often.get("a").await.unwrap(), [2], "all of them are gone");
    assert!(often.remove("a").await.unwrap());
}

/// From 4.1 on.
pub(crate) async fn chunked_values(client: &Client, name: &str, version: Option<&str>) {
    let (cache, key) = (client.raw(name), &b"large"[..]);
    if !is_from(version, "4.1") {
        let error = cache.reader(key).await.unwrap_err();
        assert!(matches!(error, ClientError::Unsupported { .. }), "{error}");
        return;
    }
    assert!(cache.reader(key).await.unwrap().is_none());
    for length in [1, PIECE_BYTES, PIECE_BYTES + 1, 4 * PIECE_BYTES, 3_000_000] {
        let value: Vec<u8> = (0..length).map(|n| (n / 7) as u8).collect();
        let mut writer = cache.writer(key).unwrap();
        writer.write(&value).await.unwrap();
        assert!(writer.finish().await.unwrap());
        let mut reader = cache.reader(key).await.unwrap().unwrap();
        let mut found = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            found.extend_from_slice(&piece);
        }
        assert!(found == value, "{length} bytes");
        assert_eq!(reader.version(), cache.get_with_metadata(key).await.unwrap().unwrap().version);
    }
    let large = vec![7; 3 * PIECE_BYTES];
    let mut writer = cache.writer(key).unwrap().if_absent();
    writer.write(&large).await.unwrap();
    assert!(!writer.finish().await.unwrap(), "it is there");
    let seen = cache.get_with_metadata(key).await.unwrap().unwrap().version;
    for is_first in [true, false] {
        let mut writer = cache.writer(key).unwrap().if_version(seen);
        writer.write(&large).await.unwrap();
        assert_eq!(writer.finish().await.unwrap(), is_first);
    }
    // A stream that is begun and not ended has no effect on others.
    let mut writer = cache.writer(key).unwrap();
    writer.write(&vec![0; 2 * PIECE_BYTES]).await.unwrap();
    drop(writer);
    let mut reader = cache.reader(key).await.unwrap().unwrap();
    reader.next().await.unwrap();
    drop(reader);
    assert!(cache.get(key).await.unwrap().unwrap() == large);
    assert!(cache.remove(key).await.unwrap());
}
