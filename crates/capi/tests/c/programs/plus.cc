// A C++ program takes the header, with extern "C" and every structure.
#include <papilio.h>

#include <cstdio>
#include <cstring>

int main()
{
    struct papilio_stat st = {};
    papilio_fs *fs = nullptr;

    if (papilio_open("/no/such/image", nullptr, &fs) >= 0 || fs != nullptr)
        return 1;
    if (std::strstr(papilio_last_error(), "/no/such/image") == nullptr)
        return 1;
    if (papilio_stat(fs, "/", 0, &st, sizeof st) >= 0)
        return 1;
    std::puts("plus: done");
    return 0;
}
