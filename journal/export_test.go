package journal

// Bug is a deliberate mistake, for tests.
type Bug = bug

// Bugs are the deliberate mistakes by name.
var Bugs = map[string]Bug{
	"confirm before the sync":                      bugConfirmUnsynced,
	"repeat a sync that has failed":                bugRetrySync,
	"remove before the new generation is durable":  bugRemoveEarly,
	"forget the names of new files":                bugNoDirSync,
	"forget the blocks of the previous generation": bugForgetOlder,
	"remove what a failed generation confirmed":    bugRemoveFailed,
	"ignore the salt":                              bugIgnoreSalt,
	"stop at a bad block":                          bugNoPageSkip,
	"ignore the maximum size":                      bugIgnoreMax,
}

// Sabotage makes j make a mistake.
func (j *Journal) Sabotage(b Bug) { j.sabotage = b }

// Sabotage makes r make a mistake.
func (r *BootReader) Sabotage(b Bug) { r.sabotage = b }

// Checksum returns the checksum that a block's head and payload should have.
func Checksum(b []byte) uint32 { return checksum(b) }
