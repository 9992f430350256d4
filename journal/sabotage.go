package journal

// bug is a deliberate mistake that the tests have to find.
type bug uint8

// The bugs.
const (
	noBug              bug = iota
	bugConfirmUnsynced     // Sync returns nil without a sync
	bugRetrySync           // a sync that is repeated after an error confirms
	bugRemoveEarly         // Complete removes older generations before the new one is durable
	bugNoDirSync           // the names of new files are not made durable
	bugForgetOlder         // Sync omits the unsynced blocks of the previous generation
	bugRemoveFailed        // Begin removes a failed generation that has confirmed blocks
	bugIgnoreSalt          // a reader accepts the blocks of other files
	bugIgnoreMax           // a new segment may exceed the maximum size
	bugNoPageSkip          // a reader stops at the first bad block
)
