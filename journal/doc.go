// Package journal writes what a member has to remember to files, and reads it after a crash.
//
// A Journal holds the records of one boot of a member. They are opaque to this package: a caller appends payloads, and
// Sync returns nil once they are durable. Files only grow. To drop what is obsolete, the caller begins a new
// generation, appends everything that it still needs, and calls Complete, which removes the older generations.
//
// The next boot finds the directories of former boots with Boots, locks one of them with Boot.Open, reads it with
// BootReader.Read, and removes it with BootReader.Remove when it needs it no more. A damaged block costs only itself:
// Read counts it and continues with the next one.
//
// The promises are:
//
//   - A file is written by one boot, from its start to its end. It is never opened for writing again.
//   - A payload is durable once Sync or Complete has returned nil. A loss of power does not lose it, until a newer
//     generation is complete.
//   - After an error of the disk nothing in the current generation is confirmed any more. What was confirmed remains on
//     disk until a newer generation is complete. A sync is never repeated, because an operating system reports a write
//     error only once.
//   - A former boot's directory is removed only by BootReader.Remove.
//   - All files of a boot together are never larger than Options.MaxBytes.
//
// FORMAT.md describes the files.
package journal
