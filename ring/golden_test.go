package ring

import (
	"fmt"
	"strings"
	"testing"
)

// goldenPlacement lists the owner (a to g) of key-0 to key-999 among seven members of different weights. Members of one
// cluster may run different versions of this program. If they disagree about owners, keys are counted twice, so this
// placement never changes.
const goldenPlacement = "" +
	"gcfdffffcfcccgaffcefdgfbfecgafccececfafcfgdfdddeaecddfcaeagccdcfcfaegcdccaeacbdeccddcgffdaagfdccdbac" +
	"dfbfcbggcgfgdacfafaggfdfcbdfbddfddcaaafgcabfbafbcbeefefefecbcgfaebfgddgacggdefbcceaefbgdffcdceddggab" +
	"adacabebdcacdcgffcccfaadgfgfgdeffcefeebdfcefefbfeecagfefgcegfcgfdcdffddgfcgeebbdcfabeecdcbfgfecgebgc" +
	"fgcddbcfagffcdaacceccfffcafffgafbcfffcbacecgaeafgfcffcbdfgbafcdffbccbfcgfcedcegedbfceegbadfdcdfbbaac" +
	"cdacagedfffcfgfaebgcbffeegbccfcdcfeggfbcdfccgebedgbegcaffcebfbcgcccedgecfgcgfgfacggfbeeeddcbdgbcccea" +
	"faccggdeegccadcfbabdcbggccedadgbdbddbfgfcfacagdcbdefdgbfdfcdfcbcaeccbbccagggafeacafgccffffcbegfccfgg" +
	"fbadcbefbgcdfffcfbabdggeefacaefegecaafcgafcbabcgccccdecebecagaegacedbfffaagbaecfgeggdfcfcgcbcefbcecc" +
	"cffdfedcecbceacdcfcdfccgcedfegcgbccgbeacafefeebfccfdfbabfcafcbgeefcfdeeebbfcbcegggeffaefcegfafagfacf" +
	"fgeacdfecdeeadfffbgcfbecbadcfagbfacefgfcbdcbfcffgcfffbfbedeegaeecaccedcddfeccdfgccbeecgedcffcdgfefga" +
	"eadeddgedegcfeadcegbcfffeaefcffdffeaffccbgggdcfgabfecdcfgfcbfefcfefbcbfdedgffffaffffccagcbfefgaaaceg"

const goldenFingerprint = 0x142cdf9d28122550

func goldenRing() *Ring {
	var members []Member
	for i := range 7 {
		id := ID(fmt.Sprintf("keyward-%c", 'a'+i))
		members = append(members, Member{ID: id, BootID: uint64(i) << 40, Incarnation: 3, Weight: uint32(i % 3)})
	}
	return New(members)
}

func TestGoldenPlacement(t *testing.T) {
	r := goldenRing()
	var got strings.Builder
	for i := range 1000 {
		id := r.At(r.Owner(Hash(fmt.Sprintf("key-%d", i)))).ID
		got.WriteByte(id[len(id)-1])
	}
	if got.String() != goldenPlacement {
		t.Errorf("the placement of keys has changed:\n%s", got.String())
	}
}

func TestGoldenFingerprint(t *testing.T) {
	if f := goldenRing().Fingerprint(); f != goldenFingerprint {
		t.Errorf("the fingerprint of rings has changed: %#x", f)
	}
}

// The first hashes are the test vectors of XXH64.
func TestGoldenHashes(t *testing.T) {
	for _, c := range []struct {
		got, want uint64
	}{
		{Hash(""), 0xef46db3751d8e999},
		{Hash("a"), 0xd24ec4f1a98c6e5b},
		{Hash("abc"), 0x44bc2cf5ad770999},
	} {
		if c.got != c.want {
			t.Errorf("%#x, want %#x", c.got, c.want)
		}
	}
}
