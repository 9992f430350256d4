package settings

import "time"

// Reasons why variables have no effect.
const (
	noRedis    = "Counters live in the members; there is no Redis."
	noMemcache = "Counters live in the members; there is no memcached."
)

func unused[T any](name, def, note string) EnvVariable {
	return EnvVariable{name, def, Ignored, note, func(*Settings) any { return new(T) }}
}

// redisTable returns the variables of one Redis. envoyproxy/ratelimit may use a second one for limits per second.
func redisTable(prefix, socket string) []EnvVariable {
	return []EnvVariable{
		unused[string](prefix+"SOCKET_TYPE", "unix", noRedis),
		unused[string](prefix+"TYPE", "SINGLE", noRedis),
		unused[string](prefix+"URL", "/var/run/nutcracker/"+socket+".sock", noRedis),
		unused[int](prefix+"POOL_SIZE", "10", noRedis),
		unused[string](prefix+"AUTH", "", noRedis),
		unused[bool](prefix+"TLS", "false", noRedis),
		unused[time.Duration](prefix+"PIPELINE_WINDOW", "0", noRedis),
		unused[int](prefix+"PIPELINE_LIMIT", "0", noRedis),
		unused[int](prefix+"CLUSTER_PIPELINE_PARALLELISM", "1", noRedis),
		unused[string](prefix+"SENTINEL_AUTH", "", noRedis),
		unused[time.Duration](prefix+"TIMEOUT", "10s", noRedis),
		unused[string](prefix+"POOL_ON_EMPTY_BEHAVIOR", "WAIT", noRedis),
	}
}

func redisOnlyTable() []EnvVariable {
	return []EnvVariable{
		unused[string]("REDIS_TLS_CLIENT_CERT", "", noRedis),
		unused[string]("REDIS_TLS_CLIENT_KEY", "", noRedis),
		unused[string]("REDIS_TLS_CACERT", "", noRedis),
		unused[bool]("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", noRedis),
		unused[bool]("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", noRedis),
		unused[time.Duration]("REDIS_STARTUP_INITIAL_INTERVAL", "1s", noRedis),
		unused[time.Duration]("REDIS_STARTUP_MAX_INTERVAL", "30s", noRedis),
		unused[time.Duration]("REDIS_STARTUP_MAX_ELAPSED_TIME", "0", noRedis),
		unused[bool]("REDIS_PERSECOND", "false", noRedis),
	}
}

func memcacheTable() []EnvVariable {
	return []EnvVariable{
		unused[[]string]("MEMCACHE_HOST_PORT", "", noMemcache),
		unused[int]("MEMCACHE_MAX_IDLE_CONNS", "2", noMemcache),
		unused[string]("MEMCACHE_SRV", "", noMemcache),
		unused[time.Duration]("MEMCACHE_SRV_REFRESH", "0", noMemcache),
		unused[bool]("MEMCACHE_TLS", "false", noMemcache),
		unused[string]("MEMCACHE_TLS_CLIENT_CERT", "", noMemcache),
		unused[string]("MEMCACHE_TLS_CLIENT_KEY", "", noMemcache),
		unused[string]("MEMCACHE_TLS_CACERT", "", noMemcache),
		unused[bool]("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", noMemcache),
	}
}
