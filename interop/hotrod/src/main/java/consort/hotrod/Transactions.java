package consort.hotrod;

import static consort.hotrod.Application.check;

import java.util.concurrent.atomic.AtomicReference;

import jakarta.transaction.RollbackException;
import jakarta.transaction.TransactionManager;

import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.configuration.TransactionMode;
import org.infinispan.client.hotrod.exceptions.CacheNotTransactionalException;
import org.infinispan.client.hotrod.transaction.lookup.RemoteTransactionManagerLookup;
import org.infinispan.commons.configuration.StringConfiguration;

/** Transactions: SERVERS INTELLIGENCE VERSION, and the mode of the client's caches. */
public final class Transactions {
    private static final String DEFINITION = "{\"distributed-cache\": {\"mode\": \"SYNC\","
        + " \"locking\": {\"isolation\": \"REPEATABLE_READ\"},"
        + " \"transaction\": {\"mode\": \"NON_XA\", \"locking\": \"PESSIMISTIC\"}}}";

    public static void main(String[] args) throws Exception {
        String suffix = "-" + args[1] + "-" + args[2] + "-" + args[3];
        String[] names = {"accounts" + suffix, "orders" + suffix, "plain" + suffix};
        ConfigurationBuilder settings = Application.settings(args[0], args[1], args[2]);
        for (String name : names) {
            settings.remoteCache(name).transactionMode(TransactionMode.valueOf(args[3]))
                .transactionManagerLookup(RemoteTransactionManagerLookup.getInstance());
        }
        try (RemoteCacheManager manager = new RemoteCacheManager(settings.build());
             RemoteCacheManager plain = Application.connect(args[0], args[1], args[2])) {
            for (int at = 0; at < 2; at++) {
                plain.administration().getOrCreateCache(names[at], new StringConfiguration(DEFINITION));
            }
            plain.administration().getOrCreateCache(names[2], DefaultTemplate.DIST_SYNC);
            check(manager.isTransactional(names[0]), true, "a cache with transactions");
            check(manager.isTransactional(names[2]), false, "a cache without them");
            try {
                manager.getCache(names[2]);
                throw new AssertionError("a cache without transactions for who wants them");
            } catch (CacheNotTransactionalException expected) {
                check(expected.getMessage().isEmpty(), false, "an exception's message");
            }
            RemoteCache<String, String> accounts = manager.getCache(names[0]);
            RemoteCache<String, String> others = plain.getCache(names[0]);
            committed(accounts, others);
            rolledBack(accounts, others);
            conflicts(accounts, others);
            several(accounts, manager.getCache(names[1]), others, plain.getCache(names[1]));
        }
        Application.done();
    }

    private static void committed(RemoteCache<String, String> cache, RemoteCache<String, String> others)
            throws Exception {
        TransactionManager transactions = cache.getTransactionManager();
        others.put("old", "1");
        transactions.begin();
        check(cache.put("a", "1"), null, "put in a transaction");
        check(cache.get("a"), "1", "get of what the transaction has put");
        check(others.get("a"), null, "get by others");
        check(cache.get("old"), "1", "get of what was there");
        cache.remove("old");
        check(cache.get("old"), null, "get of what the transaction has removed");
        cache.putIfAbsent("b", "2");
        transactions.commit();
        check(others.get("a"), "1", "get after the commit");
        check(others.get("b"), "2", "get of another key after the commit");
        check(others.get("old"), null, "get of what was removed");
        check(cache.get("a"), "1", "get outside of a transaction");
        transactions.begin();
        check(cache.get("a"), "1", "get in a transaction that only reads");
        transactions.commit();
    }

    private static void rolledBack(RemoteCache<String, String> cache, RemoteCache<String, String> others)
            throws Exception {
        TransactionManager transactions = cache.getTransactionManager();
        transactions.begin();
        cache.put("a", "2");
        cache.put("c", "3");
        transactions.rollback();
        check(others.get("a"), "1", "get after a rollback");
        check(others.get("c"), null, "get of a new key after a rollback");
        cache.put("a", "3");
        check(others.get("a"), "3", "put after a rollback");
    }

    private static void conflicts(RemoteCache<String, String> cache, RemoteCache<String, String> others)
            throws Exception {
        TransactionManager transactions = cache.getTransactionManager();
        transactions.begin();
        check(cache.get("a"), "3", "get before a conflict");
        cache.put("a", "4");
        cache.put("d", "4");
        AtomicReference<Throwable> failed = new AtomicReference<>();
        Thread other = new Thread(() -> others.put("a", "meanwhile"));
        other.setUncaughtExceptionHandler((thread, error) -> failed.set(error));
        other.start();
        other.join();
        check(failed.get(), null, "put of another client");
        try {
            transactions.commit();
            throw new AssertionError("a lost update");
        } catch (RollbackException expected) {
            check(others.get("a"), "meanwhile", "get after a conflict");
        }
        check(others.get("d"), null, "get of another key after a conflict");
        others.put("d", "free");
    }

    private static void several(RemoteCache<String, String> accounts, RemoteCache<String, String> orders,
            RemoteCache<String, String> otherAccounts, RemoteCache<String, String> otherOrders) throws Exception {
        TransactionManager transactions = accounts.getTransactionManager();
        for (int at = 0; at < 20; at++) {
            transactions.begin();
            accounts.put("account-" + at, "paid");
            orders.put("order-" + at, "sent");
            if (at % 2 == 0) {
                transactions.commit();
            } else {
                transactions.rollback();
            }
            check(otherAccounts.get("account-" + at), at % 2 == 0 ? "paid" : null, "account " + at);
            check(otherOrders.get("order-" + at), at % 2 == 0 ? "sent" : null, "order " + at);
        }
        check(otherOrders.size(), 10, "orders");
        otherOrders.clear();
        check(otherOrders.size(), 0, "orders that were cleared");
    }
}
