package promtext

import "testing"

func TestSum(t *testing.T) {
	page, err := Parse([]byte("# TYPE a counter\na{x=\"1\"} 2\na{x=\"2\"} 3\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 4\nh_sum 5\nh_count 4\nb 7\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		got, want float64
	}{{page.Sum("a"), 5}, {page.Sum("a", "x", "2"), 3}, {page.Sum("a", "y", "2"), 0}, {page.Sum("b"), 7}, {page.Sum("h"), 0}, {page.Sum("none"), 0}} {
		if row.got != row.want {
			t.Errorf("got %v, want %v", row.got, row.want)
		}
	}
	if _, err := Parse([]byte("a{")); err == nil {
		t.Error("no error for an incomplete page")
	}
}
