package sim

// The bugs of limits that Envoys spend.
const (
	bugBareBucket   bug = 160 + iota // a lease replaces another one without a refusal before it
	bugSameStream                    // a stream that follows a broken one is taken for the same
	bugEarlyAck                      // responses are acknowledged when they are sent
	bugUnchargedLot                  // hits are assigned that the owner has not charged
)

// quotaBugs are the bugs of limits that Envoys spend, by name.
var quotaBugs = map[string]bug{
	"a lease replaces another one without a refusal": bugBareBucket, "credit across a broken stream": bugSameStream,
	"responses are acknowledged when they are sent": bugEarlyAck, "hits are assigned that are not charged": bugUnchargedLot,
}
