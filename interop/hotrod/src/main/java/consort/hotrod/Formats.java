package consort.hotrod;

import static consort.hotrod.Application.check;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

import org.infinispan.client.hotrod.DataFormat;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.RemoteSchemasAdmin;
import org.infinispan.client.hotrod.RemoteSchemasAdmin.SchemaOpResultType;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.commons.configuration.StringConfiguration;
import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.commons.marshall.IdentityMarshaller;
import org.infinispan.commons.marshall.ProtoStreamMarshaller;
import org.infinispan.commons.marshall.StringMarshaller;
import org.infinispan.commons.marshall.UTF8StringMarshaller;
import org.infinispan.protostream.FileDescriptorSource;
import org.infinispan.protostream.ProtobufTagMarshaller;
import org.infinispan.protostream.SerializationContext;
import org.infinispan.protostream.TagReader;
import org.infinispan.protostream.schema.Schema;

/** Media types and schemas: SERVERS INTELLIGENCE VERSION. */
public final class Formats {
    private static final String BOOK =
        "syntax = \"proto3\";\npackage shop;\nmessage Book {\n  string title = 1;\n  int32 pages = 2;\n}\n";
    private static final String LOAN =
        "syntax = \"proto3\";\npackage shop;\nimport \"book.proto\";\nmessage Loan {\n  Book book = 1;\n}\n";

    /** What the schema has. */
    record Book(String title, int pages) {
    }

    /** Writes it as the schema says. */
    static final class BookMarshaller implements ProtobufTagMarshaller<Book> {
        @Override
        public Book read(ReadContext context) throws IOException {
            String title = "";
            int pages = 0;
            TagReader reader = context.getReader();
            for (int tag = reader.readTag(); tag != 0; tag = reader.readTag()) {
                switch (tag) {
                    case 1 << 3 | 2 -> title = reader.readString();
                    case 2 << 3 -> pages = reader.readInt32();
                    default -> reader.skipField(tag);
                }
            }
            return new Book(title, pages);
        }

        @Override
        public void write(WriteContext context, Book book) throws IOException {
            context.getWriter().writeString(1, book.title());
            context.getWriter().writeInt32(2, book.pages());
        }

        @Override
        public Class<Book> getJavaClass() {
            return Book.class;
        }

        @Override
        public String getTypeName() {
            return "shop.Book";
        }
    }

    public static void main(String[] args) throws Exception {
        ProtoStreamMarshaller marshaller = new ProtoStreamMarshaller();
        SerializationContext context = marshaller.getSerializationContext();
        context.registerProtoFiles(FileDescriptorSource.fromString("book.proto", BOOK));
        context.registerMarshaller(new BookMarshaller());
        ConfigurationBuilder settings = Application.settings(args[0], args[1], args[2]);
        try (RemoteCacheManager manager = new RemoteCacheManager(settings.marshaller(marshaller).build())) {
            String name = args[1] + "-" + args[2];
            formats(cache(manager, "formats-" + name, "application/x-protostream"));
            texts(cache(manager, "texts-" + name, "text/plain; charset=ISO-8859-1"));
            documents(cache(manager, "documents-" + name, "application/json"));
            entities(cache(manager, "entities-" + name, "application/x-java-object"));
            schemas(manager.administration().schemas());
            metadata(manager.getCache("___protobuf_metadata"));
            entitiesAsDocuments(manager, name);
        }
        Application.done();
    }

    private static <K, V> RemoteCache<K, V> cache(RemoteCacheManager manager, String name, String mediaType) {
        String settings = "distributedCache:\n  mode: SYNC\n  encoding:\n    mediaType: \"" + mediaType + "\"\n";
        return manager.administration().getOrCreateCache(name, new StringConfiguration(settings));
    }

    private static DataFormat text() {
        return text(MediaType.TEXT_PLAIN);
    }

    private static DataFormat text(MediaType value) {
        return DataFormat.builder().keyType(MediaType.TEXT_PLAIN).keyMarshaller(new UTF8StringMarshaller())
            .valueType(value).valueMarshaller(new UTF8StringMarshaller()).build();
    }

    /** What the cache keeps as Java wraps it, others read as text, JSON and bytes, and write so. */
    private static void formats(RemoteCache<Object, Object> wrapped) throws Exception {
        RemoteCache<String, String> texts = wrapped.withDataFormat(text());
        RemoteCache<String, String> documents = wrapped.withDataFormat(text(MediaType.APPLICATION_JSON));
        texts.put("text", "räksmörgås");
        check(wrapped.get("text"), "räksmörgås", "a text as a string");
        check(texts.get("text"), "räksmörgås", "a text as a text");
        check(documents.get("text"), "{\"_type\":\"string\",\"_value\":\"räksmörgås\"}", "a text as JSON");
        wrapped.put("int", 42);
        wrapped.put("long", -7L);
        wrapped.put("double", 1.5);
        wrapped.put("bool", true);
        check(texts.get("int"), "42", "an int as a text");
        check(texts.get("long"), "-7", "a long as a text");
        check(texts.get("double"), "1.5", "a double as a text");
        check(texts.get("bool"), "true", "a bool as a text");
        check(documents.get("long"), "{\"_type\":\"int64\",\"_value\":-7}", "a long as JSON");
        documents.put("int", "{\"_type\": \"int32\", \"_value\": 43}");
        check(wrapped.get("int"), 43, "JSON as an int");
        DataFormat octets = DataFormat.builder().keyType(MediaType.TEXT_PLAIN)
            .keyMarshaller(new UTF8StringMarshaller()).valueType(MediaType.APPLICATION_OCTET_STREAM)
            .valueMarshaller(IdentityMarshaller.INSTANCE).build();
        RemoteCache<String, byte[]> bytes = wrapped.withDataFormat(octets);
        bytes.put("bytes", new byte[] {1, 2, 3});
        check(Arrays.equals((byte[]) wrapped.get("bytes"), new byte[] {1, 2, 3}), true, "bytes as an array");
        check(Arrays.equals(bytes.get("bytes"), new byte[] {1, 2, 3}), true, "bytes as bytes");
        DataFormat wide = DataFormat.builder().keyType(MediaType.TEXT_PLAIN).keyMarshaller(new UTF8StringMarshaller())
            .valueType(MediaType.fromString("text/plain; charset=UTF-16BE"))
            .valueMarshaller(new StringMarshaller(StandardCharsets.UTF_16BE)).build();
        check(wrapped.<String, String>withDataFormat(wide).get("text"), "räksmörgås", "a text in another charset");

        wrapped.put("key", new Book("Emma", 474));
        check(wrapped.get("key"), new Book("Emma", 474), "an entity");
        refused(() -> texts.get("key"), "an entity as a text");
        refused(() -> documents.put("bad", "no JSON"), "what is no JSON");
        wrapped.remove("key");
        check(new HashSet<>(texts.keySet()), Set.of("text", "int", "long", "double", "bool", "bytes"), "keys as texts");
        texts.remove("bytes");
        check(texts.getAll(Set.of("int", "bool", "none")), Map.of("int", "43", "bool", "true"), "getAll of texts");
        check(texts.replace("int", "44"), null, "a replacement without flags");
        check(wrapped.get("int"), "44", "a text that was a number");
        check(texts.getWithMetadata("int").getValue(), "44", "a text with metadata");
        check(wrapped.size(), 5, "size");
    }

    private static void texts(RemoteCache<String, String> wrapped) {
        RemoteCache<String, String> texts = wrapped.withDataFormat(text());
        texts.put("clé", "été");
        check(texts.get("clé"), "été", "a text in the cache's charset");
        check(wrapped.get("clé"), "été", "the same wrapped");
        wrapped.put("k", "v");
        check(texts.get("k"), "v", "a wrapped string as a text");
    }

    private static void documents(RemoteCache<String, String> wrapped) throws Exception {
        DataFormat json = DataFormat.builder().keyType(MediaType.APPLICATION_JSON)
            .keyMarshaller(new UTF8StringMarshaller()).valueType(MediaType.APPLICATION_JSON)
            .valueMarshaller(new UTF8StringMarshaller()).build();
        RemoteCache<String, String> documents = wrapped.withDataFormat(json);
        documents.put("\"k\"", "{\"a\": [1, 2]}");
        check(documents.get("\"k\""), "{\"a\": [1, 2]}", "a document");
        RemoteCache<String, String> texts = wrapped.withDataFormat(text());
        check(texts.get("\"k\""), "{\"a\": [1, 2]}", "a document as a text");
        refused(() -> texts.put("\"k\"", "no JSON"), "a text that is no JSON");
        check(documents.get("\"k\""), "{\"a\": [1, 2]}", "a document that was not replaced");
    }

    private static void entities(RemoteCache<String, Book> books) {
        Book book = new Book("Persuasion", 249);
        books.put("austen", book);
        check(books.get("austen"), book, "an entity of a cache of objects");
        check(books.replace("austen", book, new Book("Emma", 474)), true, "replace of an entity");
        check(books.get("austen"), new Book("Emma", 474), "the entity after that");
    }

    /** What one client writes as objects, others read and write as JSON, by the schemas that are registered. */
    private static void entitiesAsDocuments(RemoteCacheManager manager, String name) throws Exception {
        RemoteSchemasAdmin schemas = manager.administration().schemas();
        RemoteCache<String, Object> books = cache(manager, "books-" + name, "application/x-protostream");
        RemoteCache<String, String> documents = books.withDataFormat(text(MediaType.APPLICATION_JSON));
        String emma = "{\"_type\":\"shop.Book\",\"title\":\"Emma\",\"pages\":474}";
        books.put("emma", new Book("Emma", 474));
        check(documents.get("emma"), emma, "an entity as JSON");
        documents.put("persuasion", "{\"pages\": 249, \"_type\": \"shop.Book\", \"title\": \"Persuasion\"}");
        check(books.get("persuasion"), new Book("Persuasion", 249), "JSON as an entity");
        check(documents.getAll(Set.of("emma")), Map.of("emma", emma), "getAll of JSON");
        Set<String> all = new HashSet<>(documents.values());
        check(all, Set.of(emma, emma.replace("Emma", "Persuasion").replace("474", "249")), "a walk in JSON");
        check(documents.replace("emma", emma.replace("474", "475")), null, "a replacement with JSON");
        check(books.get("emma"), new Book("Emma", 475), "the entity after that");
        refused(() -> documents.put("bad", "{\"_type\":\"shop.Book\",\"name\":\"Emma\"}"), "a field of no schema");
        refused(() -> documents.put("bad", "{\"_type\":\"shop.Film\"}"), "a type of no schema");
        check(books.size(), 2, "nothing of what was refused");
        // A schema that changes counts at once, and one that is gone, too.
        String series = BOOK.replace("pages = 2;", "pages = 2;\n  string series = 3;");
        check(schemas.update(Schema.buildFromStringContent("book.proto", series), true).hasError(), false, "a new field");
        documents.put("more", "{\"_type\":\"shop.Book\",\"title\":\"More\",\"series\":\"S\"}");
        check(documents.get("more"), "{\"_type\":\"shop.Book\",\"title\":\"More\",\"series\":\"S\"}", "it in JSON");
        check(books.get("more"), new Book("More", 0), "what knows nothing of it");
        schemas.remove("book.proto");
        refused(() -> documents.get("emma"), "an entity without a schema");
        check(books.get("emma"), new Book("Emma", 475), "who needs none");
        schemas.create(Schema.buildFromStringContent("book.proto", BOOK));
        check(documents.get("emma"), emma.replace("474", "475"), "an entity that has one again");
    }

    private static void schemas(RemoteSchemasAdmin schemas) {
        schemas.remove("loan.proto", true);
        schemas.remove("book.proto", true);
        check(schemas.exists("loan.proto"), false, "no schema");
        RemoteSchemasAdmin.SchemaOpResult created = schemas.create(Schema.buildFromStringContent("loan.proto", LOAN));
        check(created.getType(), SchemaOpResultType.CREATED, "a schema");
        check(created.hasError(), true, "what it imports is missing");
        check(schemas.retrieveError("loan.proto").isPresent(), true, "its error");
        check(schemas.retrieveAllSchemaErrors().schemas().size(), 1, "errors of all");
        Schema book = Schema.buildFromStringContent("book.proto", BOOK);
        check(schemas.createOrUpdate(book).hasError(), false, "what was missing");
        check(schemas.retrieveError("loan.proto").isPresent(), false, "no error any more");
        check(schemas.retrieveAllSchemaErrors().isEmpty(), true, "no errors of all");
        check(schemas.createOrUpdate(book).getType(), SchemaOpResultType.NONE, "the same again");
        check(schemas.update(Schema.buildFromStringContent("book.proto", "message {")).hasError(), true, "a bad schema");
        check(schemas.update(book, true).getType(), SchemaOpResultType.UPDATED, "a good one again");
        check(schemas.get("book.proto").get().getContent(), BOOK, "its text");
        check(schemas.remove("loan.proto").getType(), SchemaOpResultType.DELETED, "a removal");
        check(schemas.remove("loan.proto").getType(), SchemaOpResultType.NONE, "a removal of nothing");
    }

    /** As older programs do it. */
    private static void metadata(RemoteCache<String, String> metadata) throws Exception {
        check(metadata.get("book.proto"), BOOK, "a schema in the cache");
        metadata.put("bad.proto", "message Bad {");
        check(metadata.get(".errors"), "bad.proto", "schemas with errors");
        check(metadata.containsKey("bad.proto.errors"), true, "the error of one");
        metadata.remove("bad.proto");
        check(metadata.get(".errors"), null, "no schemas with errors");
        check(metadata.keySet().contains("book.proto"), true, "keys of the cache");
        refused(() -> metadata.put("book", BOOK), "a key that is no schema's");
    }

    private interface Refused {
        void run() throws Exception;
    }

    private static void refused(Refused asked, String what) throws Exception {
        try {
            asked.run();
        } catch (HotRodClientException refused) {
            check(refused.getMessage().isEmpty(), false, what);
            return;
        }
        throw new AssertionError(what + " is not refused");
    }
}
