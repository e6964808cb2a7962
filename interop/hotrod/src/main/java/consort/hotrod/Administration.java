package consort.hotrod;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;

import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.RemoteCacheManagerAdmin;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.commons.api.CacheContainerAdmin.AdminFlag;
import org.infinispan.commons.configuration.StringConfiguration;

/**
 * Tells what becomes of aliases and templates: SERVERS INTELLIGENCE VERSION. With one argument more also what Infinispan 16.0.7 does
 * not do: aliases that no cache has had, caches that are wanted by an alias, and aliases that stay when something else is changed.
 */
public final class Administration {
    private static RemoteCacheManager manager;

    private interface Action {
        Object run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager connected = Application.connect(args[0], args[1], args[2])) {
            manager = connected;
            aliases(connected.administration());
            templates(connected.administration());
            if (args.length > 3) {
                further(connected.administration());
            }
        }
        Application.done();
    }

    private static StringConfiguration configuration(String attributes) {
        return new StringConfiguration("<distributed-cache" + attributes + "/>");
    }

    private static void aliases(RemoteCacheManagerAdmin admin) {
        admin.createCache("red", configuration(""));
        admin.createCache("blue", configuration(""));
        manager.getCache("red").put("k", "in red");
        manager.getCache("blue").put("k", "in blue");
        say("no alias", () -> manager.getCache("colour"));
        say("an alias", () -> attribute(admin, "red", "aliases", "colour"));
        say("it again", () -> assign(admin, "colour", "red"));
        say("read", () -> get("colour"));
        say("written", () -> {
            manager.getCache("colour").put("k2", "by alias");
            return manager.getCache("red").get("k2");
        });
        say("walked", () -> new TreeSet<>(manager.getCache("colour").keySet()));
        say("sized", () -> manager.getCache("colour").size());
        say("queried by its name", () -> names());
        say("another alias", () -> attribute(admin, "red", "aliases", "colour shade"));
        say("moved", () -> assign(admin, "colour", "blue"));
        say("read", () -> get("colour"));
        say("the other", () -> get("shade"));
        say("of no cache", () -> assign(admin, "colour", "green"));
        say("the name of a cache", () -> assign(admin, "red", "blue"));
        say("read", () -> get("red"));
        say("its own name", () -> assign(admin, "red", "red"));
        say("a cache with an alias's name", () -> admin.createCache("colour", configuration("")).getName());
        say("aliases from the start", () -> admin.createCache("grey", configuration(" aliases=\"ash smoke\"")).getName());
        say("read", () -> get("smoke"));
        say("aliases that another has", () -> admin.createCache("pink", configuration(" aliases=\"ash\"")).getName());
        say("the cache", () -> get("pink"));
        say("aliases that are a cache", () -> admin.createCache("pink", configuration(" aliases=\"red\"")).getName());
        say("changed", () -> attribute(admin, "grey", "aliases", "dust smoke"));
        say("gone", () -> get("ash"));
        say("new", () -> get("dust"));
        say("an alias of it", () -> assign(admin, "dust", "blue"));
        say("removed by its alias", () -> remove(admin, "dust"));
        say("the cache", () -> get("blue"));
        say("removed", () -> remove(admin, "red"));
        say("its alias", () -> get("shade"));
        for (String name : List.of("blue", "grey")) {
            admin.removeCache(name);
        }
        say("nothing", () -> names());
    }

    private static void further(RemoteCacheManagerAdmin admin) {
        admin.createCache("red", configuration(""));
        manager.getCache("red").put("k", "in red");
        admin.assignAlias("colour", "red");
        Application.check(manager.getCache("colour").get("k"), "in red", "a first alias");
        admin.assignAlias("tint", "colour");
        Application.check(manager.getCache("tint").get("k"), "in red", "an alias of what an alias means");
        Application.check(admin.getOrCreateCache("colour", configuration("")).get("k"), "in red", "a cache that is there");
        admin.withFlags(AdminFlag.UPDATE).getOrCreateCache("red", configuration(""));
        Application.check(manager.getCache("colour").get("k"), "in red", "an alias of a cache that was changed");
        admin.updateConfigurationAttribute("red", "aliases", "");
        try {
            throw new AssertionError("an alias that is none: " + manager.getCache("colour").get("k"));
        } catch (HotRodClientException gone) {
            Application.check(gone.getMessage().contains("CacheNotFoundException"), true, gone.getMessage());
        }
        Application.check(names().toString(), "[red]", "names");
        admin.removeCache("red");
    }

    private static void templates(RemoteCacheManagerAdmin admin) {
        say("no template", () -> admin.createCache("one", "mine").getName());
        say("a template", () -> template(admin, "mine", "<distributed-cache owners=\"1\"><memory max-count=\"5\"/></distributed-cache>"));
        say("it again", () -> template(admin, "mine", "<distributed-cache owners=\"1\"/>"));
        say("another one of its name", () -> template(admin, "mine", "<replicated-cache/>"));
        say("a cache of it", () -> admin.createCache("one", "mine").getName());
        say("used", () -> {
            manager.getCache("one").put("k", "v");
            return get("one");
        });
        say("no cache", () -> get("mine"));
        say("names", () -> names());
        say("one that names it", () -> admin.createCache("two", configuration(" configuration=\"mine\" segments=\"16\"")).getName());
        say("one that names none", () -> admin.createCache("three", configuration(" configuration=\"yours\"")).getName());
        say("one of another kind", () -> admin.createCache("three", new StringConfiguration("<replicated-cache configuration=\"mine\"/>")).getName());
        say("a wrong one", () -> template(admin, "wrong", "<distributed-cache owners=\"many\"/>"));
        say("had or made of it", () -> admin.getOrCreateCache("four", "mine").getName());
        say("removed", () -> removeTemplate(admin, "mine"));
        say("removed again", () -> removeTemplate(admin, "mine"));
        say("caches of it", () -> get("one"));
        say("a cache of it", () -> admin.createCache("five", "mine").getName());
        say("for a while", () -> {
            admin.withFlags(AdminFlag.VOLATILE).createTemplate("brief", configuration(""));
            return "done";
        });
        say("a cache of it", () -> admin.createCache("five", "brief").getName());
        say("removed", () -> removeTemplate(admin, "brief"));
        for (String name : List.of("one", "four", "five")) {
            admin.removeCache(name);
        }
        say("nothing", () -> names());
    }

    private static Object assign(RemoteCacheManagerAdmin admin, String alias, String cache) {
        admin.assignAlias(alias, cache);
        return "done";
    }

    private static Object attribute(RemoteCacheManagerAdmin admin, String cache, String attribute, String value) {
        admin.updateConfigurationAttribute(cache, attribute, value);
        return "done";
    }

    private static Object remove(RemoteCacheManagerAdmin admin, String cache) {
        admin.removeCache(cache);
        return "done";
    }

    private static Object template(RemoteCacheManagerAdmin admin, String name, String configuration) {
        admin.createTemplate(name, new StringConfiguration(configuration));
        return "done";
    }

    private static Object removeTemplate(RemoteCacheManagerAdmin admin, String name) {
        admin.removeTemplate(name);
        return "done";
    }

    private static Object get(String name) {
        RemoteCache<Object, Object> cache = manager.getCache(name);
        return cache == null ? "no cache" : "k is " + cache.get("k");
    }

    private static Object names() {
        List<String> names = new ArrayList<>(manager.getCacheNames());
        // Of a server's own there are others elsewhere.
        names.removeIf(name -> name.startsWith("___"));
        return new TreeSet<>(names);
    }

    private static void say(String what, Action action) {
        String told;
        try {
            told = String.valueOf(action.run());
        } catch (HotRodClientException refused) {
            told = "refused";
            if (System.getenv("WHY") != null) {
                told += " WHY " + refused.getMessage();
            }
        } catch (Exception other) {
            told = other.toString();
        }
        System.out.println(what + ": " + told);
    }
}
