package consort.hotrod;

import static consort.hotrod.Application.check;

import java.util.List;

import org.infinispan.client.hotrod.DataFormat;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.commons.api.query.Query;
import org.infinispan.commons.configuration.StringConfiguration;
import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.commons.marshall.UTF8StringMarshaller;

/** Queries with and without paging, of any release of the client: SERVERS INTELLIGENCE VERSION. */
public final class Asked {
    private static final String SCHEMA =
        "syntax = \"proto3\";\npackage asked;\nmessage Item {\n  string name = 1;\n  int32 price = 2;\n}\n";

    public static void main(String[] args) {
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            manager.<String, String>getCache("___protobuf_metadata").put("asked.proto", SCHEMA);
            String settings = "<distributed-cache><encoding media-type=\"application/x-protostream\"/></distributed-cache>";
            RemoteCache<Object, Object> cache =
                manager.administration().getOrCreateCache("asked", new StringConfiguration(settings));
            RemoteCache<String, String> documents = cache.withDataFormat(DataFormat.builder()
                .keyType(MediaType.TEXT_PLAIN).keyMarshaller(new UTF8StringMarshaller())
                .valueType(MediaType.APPLICATION_JSON).valueMarshaller(new UTF8StringMarshaller()).build());
            for (int price = 0; price < 5; price++) {
                documents.put("item-" + price, "{\"_type\":\"asked.Item\",\"name\":\"i" + price + "\",\"price\":" + price + "}");
            }
            check(names(query(cache)), "i0 i1 i2 i3 i4", "without paging");
            check(names(query(cache).startOffset(2)), "i2 i3 i4", "from an offset");
            check(names(query(cache).maxResults(2)), "i0 i1", "with a limit");
            check(names(query(cache).startOffset(1).maxResults(2)), "i1 i2", "with both");
            check(cache.query("DELETE FROM asked.Item WHERE price > 2").executeStatement(), 2, "deleted");
            check(names(query(cache)), "i0 i1 i2", "those that are left");
        }
        Application.done();
    }

    private static Query<Object[]> query(RemoteCache<Object, Object> cache) {
        return cache.query("SELECT name FROM asked.Item ORDER BY price");
    }

    private static String names(Query<Object[]> query) {
        List<Object[]> rows = query.execute().list();
        return String.join(" ", rows.stream().map(row -> (String) row[0]).toList());
    }
}
