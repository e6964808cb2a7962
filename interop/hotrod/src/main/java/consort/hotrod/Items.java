package consort.hotrod;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.infinispan.protostream.EnumMarshaller;
import org.infinispan.protostream.FileDescriptorSource;
import org.infinispan.protostream.ProtobufTagMarshaller;
import org.infinispan.protostream.SerializationContext;
import org.infinispan.protostream.TagReader;
import org.infinispan.protostream.TagWriter;

/** What is queried: a schema, entities of it, and who writes and reads them. Fields that are null are not written. */
final class Items {
    static final String NAME = "items.proto";

    static final String SCHEMA = """
        syntax = "proto3";
        package shop;
        enum Kind { NONE = 0; BOOK = 1; FILM = 2; GAME = 3; }
        message Maker { string name = 1; string country = 2; int32 founded = 3; }
        message Part { string code = 1; int32 count = 2; double weight = 3; Maker maker = 4; }
        /* @TypeId(1000042) */
        message Item {
          string name = 1;
          int32 price = 2;
          int64 sold = 3;
          double weight = 4;
          float rating = 5;
          bool available = 6;
          Kind kind = 7;
          Maker maker = 8;
          repeated string tags = 9;
          repeated Part parts = 10;
          repeated int32 sizes = 11;
          bytes code = 12;
          uint32 shelf = 13;
          fixed64 added = 14;
        }
        message Visit { string name = 1; int32 minutes = 2; }
        """;

    enum Kind {
        NONE, BOOK, FILM, GAME
    }

    record Maker(String name, String country, Integer founded) {
    }

    record Part(String code, Integer count, Double weight, Maker maker) {
    }

    record Item(String name, Integer price, Long sold, Double weight, Float rating, Boolean available, Kind kind,
                Maker maker, List<String> tags, List<Part> parts, List<Integer> sizes, byte[] code, Integer shelf,
                Long added) {
        @Override
        public String toString() {
            return "Item(" + name + ")";
        }

        /** With everything that it has. */
        String whole() {
            return Arrays.asList(name, price, sold, weight, rating, available, kind, maker, tags, parts, sizes,
                Arrays.toString(code), shelf, added).toString();
        }
    }

    record Visit(String name, Integer minutes) {
    }

    private Items() {
    }

    static void register(SerializationContext context) {
        context.registerProtoFiles(FileDescriptorSource.fromString(NAME, SCHEMA));
        context.registerMarshaller(new Kinds());
        context.registerMarshaller(new Makers());
        context.registerMarshaller(new Parts());
        context.registerMarshaller(new Those());
        context.registerMarshaller(new Visits());
    }

    static Item item(String name, Integer price, Kind kind, Maker maker, List<String> tags, List<Integer> sizes) {
        return new Item(name, price, price == null ? null : price * 1_000_000_000L, price == null ? null : price / 4.0,
            price == null ? null : price / 8f, price == null ? null : price % 2 == 0, kind, maker, tags, List.of(),
            sizes, price == null ? null : new byte[] {1, price.byteValue()}, price == null ? null : price % 3,
            price == null ? null : Long.MAX_VALUE - price);
    }

    static Item with(Item item, Part... parts) {
        return new Item(item.name, item.price, item.sold, item.weight, item.rating, item.available, item.kind,
            item.maker, item.tags, List.of(parts), item.sizes, item.code, item.shelf, item.added);
    }

    /** What is in the cache. */
    static List<Item> all() {
        Maker penguin = new Maker("Penguin", "UK", 1935);
        Maker fischer = new Maker("Fischer", "Germany", 1886);
        Maker nobody = new Maker(null, "UK", null);
        return List.of(
            item("Emma", 12, Kind.BOOK, penguin, List.of("novel", "classic"), List.of(1, 2, 3)),
            item("Persuasion", 9, Kind.BOOK, penguin, List.of("novel"), List.of(5)),
            item("Alien", 15, Kind.FILM, null, List.of("horror", "space"), List.of()),
            item("Buddenbrooks", 20, Kind.BOOK, fischer, List.of("novel", "family", "classic"), List.of(3, 4)),
            with(item("Chess", 30, Kind.GAME, nobody, List.of(), List.of(7)),
                new Part("king", 2, 0.5, penguin), new Part("pawn", 16, 0.25, null)),
            with(item("Go", 30, Kind.GAME, fischer, List.of("classic"), List.of(19)),
                new Part("stone", 361, 0.125, null), new Part("board", 1, 3.0, fischer)),
            item("100%_sure\\", 1, Kind.NONE, null, List.of("100%"), List.of(0)),
            item("it's", null, null, null, List.of(), List.of()),
            item("été", -5, Kind.FILM, penguin, List.of("a.b", "[c]"), List.of(-1)),
            new Item(null, 7, null, null, null, null, null, null, List.of(), List.of(), List.of(), null, null, null));
    }

    private static final class Kinds implements EnumMarshaller<Kind> {
        @Override
        public Kind decode(int number) {
            return Kind.values()[number];
        }

        @Override
        public int encode(Kind kind) {
            return kind.ordinal();
        }

        @Override
        public Class<Kind> getJavaClass() {
            return Kind.class;
        }

        @Override
        public String getTypeName() {
            return "shop.Kind";
        }
    }

    private static final class Makers implements ProtobufTagMarshaller<Maker> {
        @Override
        public Maker read(ReadContext context) throws IOException {
            String name = null;
            String country = null;
            Integer founded = null;
            TagReader reader = context.getReader();
            for (int tag = reader.readTag(); tag != 0; tag = reader.readTag()) {
                switch (tag >>> 3) {
                    case 1 -> name = reader.readString();
                    case 2 -> country = reader.readString();
                    case 3 -> founded = reader.readInt32();
                    default -> reader.skipField(tag);
                }
            }
            return new Maker(name, country, founded);
        }

        @Override
        public void write(WriteContext context, Maker maker) throws IOException {
            TagWriter writer = context.getWriter();
            if (maker.name() != null) {
                writer.writeString(1, maker.name());
            }
            if (maker.country() != null) {
                writer.writeString(2, maker.country());
            }
            if (maker.founded() != null) {
                writer.writeInt32(3, maker.founded());
            }
        }

        @Override
        public Class<Maker> getJavaClass() {
            return Maker.class;
        }

        @Override
        public String getTypeName() {
            return "shop.Maker";
        }
    }

    private static final class Parts implements ProtobufTagMarshaller<Part> {
        @Override
        public Part read(ReadContext context) throws IOException {
            String code = null;
            Integer count = null;
            Double weight = null;
            Maker maker = null;
            TagReader reader = context.getReader();
            for (int tag = reader.readTag(); tag != 0; tag = reader.readTag()) {
                switch (tag >>> 3) {
                    case 1 -> code = reader.readString();
                    case 2 -> count = reader.readInt32();
                    case 3 -> weight = reader.readDouble();
                    case 4 -> maker = nested(context, Maker.class);
                    default -> reader.skipField(tag);
                }
            }
            return new Part(code, count, weight, maker);
        }

        @Override
        public void write(WriteContext context, Part part) throws IOException {
            TagWriter writer = context.getWriter();
            writer.writeString(1, part.code());
            writer.writeInt32(2, part.count());
            writer.writeDouble(3, part.weight());
            if (part.maker() != null) {
                nested(context, 4, part.maker());
            }
        }

        @Override
        public Class<Part> getJavaClass() {
            return Part.class;
        }

        @Override
        public String getTypeName() {
            return "shop.Part";
        }
    }

    private static final class Those implements ProtobufTagMarshaller<Item> {
        @Override
        public Item read(ReadContext context) throws IOException {
            String name = null;
            Integer price = null;
            Long sold = null;
            Double weight = null;
            Float rating = null;
            Boolean available = null;
            Kind kind = null;
            Maker maker = null;
            List<String> tags = new ArrayList<>();
            List<Part> parts = new ArrayList<>();
            List<Integer> sizes = new ArrayList<>();
            byte[] code = null;
            Integer shelf = null;
            Long added = null;
            TagReader reader = context.getReader();
            for (int tag = reader.readTag(); tag != 0; tag = reader.readTag()) {
                switch (tag >>> 3) {
                    case 1 -> name = reader.readString();
                    case 2 -> price = reader.readInt32();
                    case 3 -> sold = reader.readInt64();
                    case 4 -> weight = reader.readDouble();
                    case 5 -> rating = reader.readFloat();
                    case 6 -> available = reader.readBool();
                    case 7 -> kind = Kind.values()[reader.readEnum()];
                    case 8 -> maker = nested(context, Maker.class);
                    case 9 -> tags.add(reader.readString());
                    case 10 -> parts.add(nested(context, Part.class));
                    case 11 -> sizes.add(reader.readInt32());
                    case 12 -> code = reader.readByteArray();
                    case 13 -> shelf = reader.readUInt32();
                    case 14 -> added = reader.readFixed64();
                    default -> reader.skipField(tag);
                }
            }
            return new Item(name, price, sold, weight, rating, available, kind, maker, tags, parts, sizes, code, shelf,
                added);
        }

        @Override
        public void write(WriteContext context, Item item) throws IOException {
            TagWriter writer = context.getWriter();
            if (item.name() != null) {
                writer.writeString(1, item.name());
            }
            if (item.price() != null) {
                writer.writeInt32(2, item.price());
            }
            if (item.sold() != null) {
                writer.writeInt64(3, item.sold());
            }
            if (item.weight() != null) {
                writer.writeDouble(4, item.weight());
            }
            if (item.rating() != null) {
                writer.writeFloat(5, item.rating());
            }
            if (item.available() != null) {
                writer.writeBool(6, item.available());
            }
            if (item.kind() != null) {
                writer.writeEnum(7, item.kind().ordinal());
            }
            if (item.maker() != null) {
                nested(context, 8, item.maker());
            }
            for (String tag : item.tags()) {
                writer.writeString(9, tag);
            }
            for (Part part : item.parts()) {
                nested(context, 10, part);
            }
            for (int size : item.sizes()) {
                writer.writeInt32(11, size);
            }
            if (item.code() != null) {
                writer.writeBytes(12, item.code());
            }
            if (item.shelf() != null) {
                writer.writeUInt32(13, item.shelf());
            }
            if (item.added() != null) {
                writer.writeFixed64(14, item.added());
            }
        }

        @Override
        public Class<Item> getJavaClass() {
            return Item.class;
        }

        @Override
        public String getTypeName() {
            return "shop.Item";
        }
    }

    private static final class Visits implements ProtobufTagMarshaller<Visit> {
        @Override
        public Visit read(ReadContext context) throws IOException {
            String name = null;
            Integer minutes = null;
            TagReader reader = context.getReader();
            for (int tag = reader.readTag(); tag != 0; tag = reader.readTag()) {
                switch (tag >>> 3) {
                    case 1 -> name = reader.readString();
                    case 2 -> minutes = reader.readInt32();
                    default -> reader.skipField(tag);
                }
            }
            return new Visit(name, minutes);
        }

        @Override
        public void write(WriteContext context, Visit visit) throws IOException {
            context.getWriter().writeString(1, visit.name());
            context.getWriter().writeInt32(2, visit.minutes());
        }

        @Override
        public Class<Visit> getJavaClass() {
            return Visit.class;
        }

        @Override
        public String getTypeName() {
            return "shop.Visit";
        }
    }

    private static <T> T nested(ProtobufTagMarshaller.ReadContext context, Class<T> type) throws IOException {
        TagReader reader = context.getReader();
        int length = reader.readUInt32();
        int limit = reader.pushLimit(length);
        ProtobufTagMarshaller<T> marshaller =
            (ProtobufTagMarshaller<T>) ((SerializationContext) context.getSerializationContext()).getMarshaller(type);
        T read = marshaller.read(context);
        reader.checkLastTagWas(0);
        reader.popLimit(limit);
        return read;
    }

    private static <T> void nested(ProtobufTagMarshaller.WriteContext context, int number, T value) throws IOException {
        TagWriter writer = context.getWriter();
        byte[] bytes = org.infinispan.protostream.ProtobufUtil.toByteArray(
            (SerializationContext) context.getSerializationContext(), value);
        writer.writeBytes(number, bytes);
    }
}
