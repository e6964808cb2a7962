package consort.hotrod;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.infinispan.client.hotrod.MetadataValue;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.client.hotrod.filter.Filters;
import org.infinispan.commons.api.query.Query;
import org.infinispan.commons.marshall.ProtoStreamMarshaller;
import org.infinispan.commons.util.CloseableIterator;

/** Tells what a walk gives over what queries find: SERVERS INTELLIGENCE VERSION CACHE. With one argument more also of wrong ones. */
public final class Found {
    private static final List<String> QUERIES = List.of(
        "FROM shop.Item",
        "FROM shop.Item WHERE price > 12",
        "FROM shop.Item i WHERE i.maker.name = 'Knopf' OR i.price < 5",
        "FROM shop.Visit",
        "SELECT name FROM shop.Item WHERE price > 5",
        "SELECT name, price FROM shop.Item WHERE name IS NOT NULL",
        "SELECT i.name, i.price, i.maker.name, i.kind, i.available FROM shop.Item i",
        "SELECT name, price FROM shop.Item ORDER BY price DESC",
        "FROM shop.Item ORDER BY price",
        "FROM shop.Item WHERE price = 4711");

    private static final List<String> WRONG = List.of(
        "SELECT COUNT(name) FROM shop.Item",
        "SELECT kind, COUNT(name) FROM shop.Item GROUP BY kind",
        "FROM shop.Item WHERE nothing = 1",
        "FROM shop.Nothing",
        "FROM");

    public static void main(String[] args) throws Exception {
        ProtoStreamMarshaller marshaller = new ProtoStreamMarshaller();
        Items.register(marshaller.getSerializationContext());
        ConfigurationBuilder settings = Application.settings(args[0], args[1], args[2]);
        try (RemoteCacheManager manager = new RemoteCacheManager(settings.marshaller(marshaller).build())) {
            RemoteCache<Object, Object> cache = Queries.opened(manager, args[3]);
            Queries.fill(cache);
            for (String text : QUERIES) {
                say(cache, text, cache.query(text), 3);
            }
            if (args.length > 4) {
                for (String text : WRONG) {
                    say(cache, text, cache.query(text), 3);
                }
            }
            Query<Object> named = cache.query("SELECT name FROM shop.Item WHERE price >= :low AND price <= :high");
            named.setParameter("low", 7).setParameter("high", 12);
            say(cache, "with parameters", named, 1_000);
            metadata(cache);
        }
        Application.done();
    }

    private static void say(RemoteCache<Object, Object> cache, String what, Query<Object> query, int batch) {
        System.out.println(what);
        List<String> told = new ArrayList<>();
        try (CloseableIterator<Map.Entry<Object, Object>> found = cache.retrieveEntriesByQuery(query, null, batch)) {
            found.forEachRemaining(entry -> told.add(entry.getKey() + " " + told(entry.getValue())));
        } catch (HotRodClientException | IllegalStateException refused) {
            told.add("refused");
        }
        Collections.sort(told);
        told.forEach(one -> System.out.println("    " + one));
    }

    private static String told(Object value) {
        return value instanceof Object[] all ? Arrays.toString(all) : String.valueOf(value);
    }

    /** What else an iteration can ask for, with the query as its filter. */
    private static void metadata(RemoteCache<Object, Object> cache) {
        Object[] query = Filters.makeFactoryParams("FROM shop.Item WHERE price > 12", null);
        Set<Integer> segments = null;
        List<String> told = new ArrayList<>();
        String factory = Filters.ITERATION_QUERY_FILTER_CONVERTER_FACTORY_NAME;
        try (CloseableIterator<Map.Entry<Object, Object>> found = cache.retrieveEntries(factory, query, segments, 2)) {
            found.forEachRemaining(entry -> told.add(entry.getKey() + " " + entry.getValue()));
        }
        try (CloseableIterator<Map.Entry<Object, MetadataValue<Object>>> all = cache.retrieveEntriesWithMetadata(null, 5)) {
            all.forEachRemaining(entry -> told.add(entry.getKey() + " with " + (entry.getValue().getVersion() != 0)));
        }
        Collections.sort(told);
        System.out.println("by its factory, and with metadata");
        told.forEach(one -> System.out.println("    " + one));
    }
}
