package consort.hotrod;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.commons.api.query.Query;
import org.infinispan.commons.api.query.QueryResult;
import org.infinispan.commons.configuration.StringConfiguration;
import org.infinispan.commons.marshall.ProtoStreamMarshaller;
import org.infinispan.protostream.schema.Schema;

/**
 * Tells what a server answers to each query of a file, a line each: SERVERS INTELLIGENCE VERSION FILE CACHE. Lines that begin with
 * a blank are answers, as they are told here. After a query, each
 * behind a bar, come parameters (name=int:7), offset=, max=, accuracy=, local and whole.
 */
public final class Queries {
    public static void main(String[] args) throws Exception {
        ProtoStreamMarshaller marshaller = new ProtoStreamMarshaller();
        Items.register(marshaller.getSerializationContext());
        ConfigurationBuilder settings = Application.settings(args[0], args[1], args[2]);
        try (RemoteCacheManager manager = new RemoteCacheManager(settings.marshaller(marshaller).build())) {
            RemoteCache<Object, Object> cache = opened(manager, args[4]);
            fill(cache);
            for (String line : Files.readAllLines(Path.of(args[3]))) {
                if (line.isBlank() || line.startsWith("//") || line.startsWith(" ")) {
                    continue;
                }
                System.out.println(line);
                if (line.startsWith("DELETE") || line.startsWith("delete")) {
                    deleted(cache, line);
                } else {
                    for (String told : answer(cache, line)) {
                        System.out.println("    " + told);
                    }
                }
            }
        }
        Application.done();
    }

    /** A cache of entities. */
    /** A cache of items, made if it is not there, with their schema. */
    static RemoteCache<Object, Object> opened(RemoteCacheManager manager, String name) {
        manager.administration().schemas().createOrUpdate(Schema.buildFromStringContent(Items.NAME, Items.SCHEMA));
        String definition = "<distributed-cache name=\"" + name + "\"><encoding media-type=\"application/x-protostream\"/>"
            + "</distributed-cache>";
        return manager.administration().getOrCreateCache(name, new StringConfiguration(definition));
    }

    static void fill(RemoteCache<Object, Object> cache) {
        int key = 0;
        for (Items.Item item : Items.all()) {
            cache.put("item-" + key++, item);
        }
        cache.put("visit-1", new Items.Visit("Emma", 12));
        cache.put("visit-2", new Items.Visit("Anne", 7));
        cache.put("text", "Emma");
        cache.put("number", 12);
    }

    private static void deleted(RemoteCache<Object, Object> cache, String line) {
        try {
            int count = query(cache, line).executeStatement();
            System.out.println("    " + count + " deleted, " + cache.size() + " left");
        } catch (HotRodClientException refused) {
            refused(refused);
        }
        fill(cache);
    }

    private static void refused(Exception why) {
        System.out.println("    refused");
        if (System.getenv("WHY") != null) {
            System.out.println("    WHY " + why.getMessage());
        }
    }

    private static Query<Object> query(RemoteCache<Object, Object> cache, String line) {
        String[] parts = line.split(" \\| ");
        Query<Object> query = cache.query(parts[0]);
        for (String part : parts) {
            if (part == parts[0]) {
                continue;
            }
            String[] said = part.trim().split("=", 2);
            switch (said[0]) {
                case "offset" -> query.startOffset(Long.parseLong(said[1]));
                case "max" -> query.maxResults(Integer.parseInt(said[1]));
                case "accuracy" -> query.hitCountAccuracy(Integer.parseInt(said[1]));
                case "local" -> query.local(true);
                case "whole" -> {
                }
                default -> query.setParameter(said[0], value(said[1]));
            }
        }
        return query;
    }

    private static Object value(String said) {
        String[] typed = said.split(":", 2);
        return switch (typed[0]) {
            case "int" -> Integer.valueOf(typed[1]);
            case "long" -> Long.valueOf(typed[1]);
            case "double" -> Double.valueOf(typed[1]);
            case "float" -> Float.valueOf(typed[1]);
            case "bool" -> Boolean.valueOf(typed[1]);
            case "kind" -> Items.Kind.valueOf(typed[1]);
            default -> said;
        };
    }

    private static List<String> answer(RemoteCache<Object, Object> cache, String line) {
        try {
            QueryResult<Object> result = query(cache, line).execute();
            List<String> told = new ArrayList<>();
            for (Object row : result.list()) {
                if (row instanceof Items.Item item && line.endsWith(" | whole")) {
                    told.add(item.whole());
                    continue;
                }
                told.add(row instanceof Object[] all ? Arrays.stream(all).map(Queries::told).toList().toString() : told(row));
            }
            boolean isOrdered = line.toUpperCase().contains("ORDER BY");
            boolean isCut = line.contains("offset=") || line.contains("max=");
            if (isCut && !isOrdered) {
                // Which ones, nobody knows.
                int rows = told.size();
                told.clear();
                told.add(rows + " of them");
            }
            if (!isOrdered) {
                Collections.sort(told);
            }
            told.add(0, "count " + result.count().value() + " " + (result.count().exact() ? "exact" : "at least"));
            return told;
        } catch (HotRodClientException | IllegalArgumentException | IllegalStateException refused) {
            refused(refused);
            return List.of();
        }
    }

    private static String told(Object value) {
        if (value == null) {
            return "null";
        }
        String told = value instanceof byte[] bytes ? Arrays.toString(bytes) : value.toString();
        return value instanceof Items.Item ? told : value.getClass().getSimpleName() + ":" + told;
    }
}
