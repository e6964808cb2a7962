package consort.grid;

/** A distributed map of an embedded data grid, as far as the load needs it. Keys are numbers, values are bytes. */
interface Grid {
    byte[] get(Integer key);

    /** What the key had before is not wanted. */
    void put(Integer key, byte[] value);

    /** How many members share the map and wait for nothing; 0 while data moves. */
    int settledMembers();

    int size();

    void clear();

    /** Goes through all entries. Returns how many there were, and their bytes. */
    default long[] iterate(Way way, int batch) {
        throw new UnsupportedOperationException("not measured");
    }

    /** Releases, for people. */
    String version();

    /** How a map is gone through. */
    enum Way {
        /** Members are asked at the same time; everything comes exactly once. */
        PARALLEL,
        /** One member is asked after the other. */
        SEQUENTIAL,
        /** Without regard to rebalances. */
        AT_MOST_ONCE
    }
}
