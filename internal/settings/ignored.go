package settings

import "time"

// Reasons why variables have no effect.
const (
	noRedis    = "Counters live in the members; there is no Redis."
	noMemcache = "Counters live in the members; there is no memcached."
)

func ignoredVariable[T any](name, def, note string) EnvVariable {
	return EnvVariable{name, def, Ignored, note, func(*Settings) any { return new(T) }}
}

// redisTable returns the variables of one Redis. envoyproxy/ratelimit may use a second one for limits per second.
func redisTable(prefix, socket string) []EnvVariable {
	return []EnvVariable{
		ignoredVariable[string](prefix+"SOCKET_TYPE", "unix", noRedis),
		ignoredVariable[string](prefix+"TYPE", "SINGLE", noRedis),
		ignoredVariable[string](prefix+"URL", "/var/run/nutcracker/"+socket+".sock", noRedis),
		ignoredVariable[int](prefix+"POOL_SIZE", "10", noRedis),
		ignoredVariable[string](prefix+"AUTH", "", noRedis),
		ignoredVariable[bool](prefix+"TLS", "false", noRedis),
		ignoredVariable[time.Duration](prefix+"PIPELINE_WINDOW", "0", noRedis),
		ignoredVariable[int](prefix+"PIPELINE_LIMIT", "0", noRedis),
		ignoredVariable[int](prefix+"CLUSTER_PIPELINE_PARALLELISM", "1", noRedis),
		ignoredVariable[string](prefix+"SENTINEL_AUTH", "", noRedis),
		ignoredVariable[time.Duration](prefix+"TIMEOUT", "10s", noRedis),
		ignoredVariable[string](prefix+"POOL_ON_EMPTY_BEHAVIOR", "WAIT", noRedis),
	}
}

func redisOnlyTable() []EnvVariable {
	return []EnvVariable{
		ignoredVariable[string]("REDIS_TLS_CLIENT_CERT", "", noRedis),
		ignoredVariable[string]("REDIS_TLS_CLIENT_KEY", "", noRedis),
		ignoredVariable[string]("REDIS_TLS_CACERT", "", noRedis),
		ignoredVariable[bool]("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", noRedis),
		ignoredVariable[bool]("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", noRedis),
		ignoredVariable[time.Duration]("REDIS_STARTUP_INITIAL_INTERVAL", "1s", noRedis),
		ignoredVariable[time.Duration]("REDIS_STARTUP_MAX_INTERVAL", "30s", noRedis),
		ignoredVariable[time.Duration]("REDIS_STARTUP_MAX_ELAPSED_TIME", "0", noRedis),
		ignoredVariable[bool]("REDIS_PERSECOND", "false", noRedis),
	}
}

func memcacheTable() []EnvVariable {
	return []EnvVariable{
		ignoredVariable[[]string]("MEMCACHE_HOST_PORT", "", noMemcache),
		ignoredVariable[int]("MEMCACHE_MAX_IDLE_CONNS", "2", noMemcache),
		ignoredVariable[string]("MEMCACHE_SRV", "", noMemcache),
		ignoredVariable[time.Duration]("MEMCACHE_SRV_REFRESH", "0", noMemcache),
		ignoredVariable[bool]("MEMCACHE_TLS", "false", noMemcache),
		ignoredVariable[string]("MEMCACHE_TLS_CLIENT_CERT", "", noMemcache),
		ignoredVariable[string]("MEMCACHE_TLS_CLIENT_KEY", "", noMemcache),
		ignoredVariable[string]("MEMCACHE_TLS_CACERT", "", noMemcache),
		ignoredVariable[bool]("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", noMemcache),
	}
}
